"""Helpers of the tests: small models, fake servers, workspaces, public files."""
