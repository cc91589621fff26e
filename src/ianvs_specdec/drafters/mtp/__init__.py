"""Multi-token prediction by layers of the model's own checkpoint."""
