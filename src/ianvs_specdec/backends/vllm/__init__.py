"""vLLM, run in an environment of its own."""
