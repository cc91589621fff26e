"""Speed measurements of our methods and other implementations, on the same model and prompts, interleaved."""
