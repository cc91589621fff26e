"""What tests of several rooms share: small models, servers that misbehave on purpose, workspaces, and public files."""
