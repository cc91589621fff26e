"""A test case behind the endpoint: its router decides which of its models answers a chat."""
