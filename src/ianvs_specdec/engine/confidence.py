"""How sure a model was of what it said: one triple of numbers per output token, from logits that are there anyway."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ianvs_specdec.common.types import rounded

Triple = tuple[float, float, float]
"""Log-probability, entropy and margin of a token."""


def confidence(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """``[rows, 3]``, float32: of each token its natural log-probability, the entropy of the distribution in nats, and
    the margin between the two best probabilities. ``logits`` ``[rows, vocabulary]`` are the model's own.
    """
    known = logits.float().log_softmax(dim=-1)
    chosen = known.gather(1, torch.tensor(tokens, device=known.device)[:, None])
    probabilities = known.exp()
    best = probabilities.topk(2, dim=-1).values
    return torch.cat([chosen, torch.special.entr(probabilities).sum(-1, keepdim=True), best[:, :1] - best[:, 1:]], 1)


FIRST = 100
"""How many of the likeliest first tokens are told."""


class Confidence:
    """Collects the triples of one output, and the ``top`` likeliest tokens in the place of each. All of it stays on the
    device to the end, so that no step waits for it."""

    def __init__(self, top: int = 0) -> None:
        self._parts: list[Tensor] = []
        self._top, self._likeliest = top, list[tuple[Tensor, Tensor]]()
        self._first: Tensor | None = None

    def add(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """The ``tokens`` of a step, and the logits ``[rows, vocabulary]`` that each of them was taken from."""
        if self._first is None:
            self._first = logits[0].float().log_softmax(dim=-1)
        self._parts.append(confidence(logits, tokens))
        if self._top:
            known = logits.float().log_softmax(dim=-1)
            values, ids = known.topk(min(self._top, known.shape[-1]), dim=-1)
            self._likeliest.append((ids, values))

    def first(self) -> list[tuple[int, float]]:
        """The likeliest first tokens and their log-probabilities, the likeliest first."""
        if self._first is None:
            return []
        values, ids = self._first.topk(min(FIRST, len(self._first)))
        return list(zip(ids.tolist(), values.tolist(), strict=True))

    def triples(self, tokens: int) -> list[Triple]:
        """Those of the first ``tokens`` tokens: where the output ended in the middle of a step, the others are not in
        it.
        """
        rows = torch.cat(self._parts)[:tokens].tolist() if self._parts else []
        return [rounded(logprob, entropy, margin) for logprob, entropy, margin in rows]

    def top(self, tokens: int) -> list[list[tuple[int | str, float]]]:
        """The likeliest tokens in the place of each of the first ``tokens`` tokens, the likeliest first."""
        rows = [row for ids, values in self._likeliest for row in zip(ids.tolist(), values.tolist(), strict=True)]
        return [[(i, round(value, 5) + 0.0) for i, value in zip(*row, strict=True)] for row in rows[:tokens]]
