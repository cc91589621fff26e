"""The native step: a model's forward for many sequences at once, in C++."""
