"""What a model thinks of a prompt, before it is decided whether it shall answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ianvs_specdec.types import POOLING

_POOLS: dict[str, Callable[[Tensor], Tensor]] = {"last": lambda rows: rows[-1], "max": lambda rows: rows.amax(0)}


class Probe:
    """Of one request: the pooled hidden states of its prompt, of the ``layers`` asked for (indices as in
    ``Target.open``). The request puts out nothing until it may go on; it keeps its sequence, so that the prompt is read
    once.

    ``told`` is called on the engine's thread, once the states are there. Where it goes on, or is given up, while its
    engine sleeps, somebody has to wake that.
    """

    def __init__(self, layers: Sequence[int], told: Callable[[], None] = lambda: None) -> None:
        self.layers = tuple(layers)
        self.states: Tensor | None = None
        """Shape ``[layers, 2 * hidden]`` in float32, on the CPU, as ``types.POOLING`` says; None while the prompt is
        not read."""
        self.prompt_tokens = 0
        """How many tokens were read."""
        self.decided = False
        """Whether the request may go on."""
        self._told = told

    def take(self, hidden: Sequence[Tensor]) -> None:
        """The layers' states of the prompt, each ``[rows, hidden]``."""
        import torch

        self.prompt_tokens = len(hidden[0])
        self.states = (
            torch.stack([torch.cat([_POOLS[name](rows) for name in POOLING]) for rows in hidden]).float().cpu()
        )
        self._told()

    def go_on(self) -> None:
        """From any thread."""
        self.decided = True
