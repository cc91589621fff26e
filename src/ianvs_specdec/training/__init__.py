"""Training of what the project ships: the tokenizer and the models of the embedded benchmark."""
