"""The network: HTTP with counted bytes, an emulated link, the protocol of split decoding."""
