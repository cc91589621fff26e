"""Side-by-side speed measurements: our methods and peers on the same model and prompts, in one interleaved run."""
