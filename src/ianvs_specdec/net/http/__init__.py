"""Talking to servers over the network: every byte counted, every wait bounded."""
