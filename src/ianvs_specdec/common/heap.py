"""What a process holds for as long as it runs."""

import gc


def keep() -> None:
    """Have the garbage collector leave alone what there is now: it is there to stay.

    A model, its tokenizer and the libraries around them are half a million objects. To look through all of them takes
    0.2 s, for which every request waits, every few seconds on a busy server.
    """
    gc.collect()
    gc.freeze()
