"""Training of the embedded benchmark's tokenizer and models, and of draft heads."""
