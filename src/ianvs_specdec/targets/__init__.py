"""What computes a model: compiled, in torch, or as transformers has it."""
