"""Garbage collection in long-running processes."""

import gc


def keep() -> None:
    """Exclude all present objects from garbage collection.

    A model, its tokenizer and their libraries are half a million objects. Scanning them takes 0.2 s, every few seconds
    on a busy server, and every request waits for it.
    """
    gc.collect()
    gc.freeze()
