"""The layers for multi-token prediction that a model's own checkpoint brings draft."""
