"""The native step: a model's forward for many sequences at once, in a library that is compiled with the package."""
