"""``python -m bench.split PART``: split decoding measured, see ``__main__``."""
