"""GGUF files: export and import."""
