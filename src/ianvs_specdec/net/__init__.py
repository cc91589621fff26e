"""The network: an HTTP client that counts bytes, an emulated link, the protocol of split decoding."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names and addresses of this machine."""
