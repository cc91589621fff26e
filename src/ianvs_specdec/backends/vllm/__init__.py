"""vLLM in its own environment."""
