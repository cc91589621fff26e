"""Confidence of a model in its output: one triple of numbers per token, from the logits of decoding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ianvs_specdec.common.types import rounded

Triple = tuple[float, float, float]
"""Log-probability, entropy and margin of a token."""


def confidence(logits: Tensor, tokens: Sequence[int]) -> Tensor:
    """Float32 ``[rows, 3]``: natural log-probability of each token, entropy of the distribution in nats, and margin
    between the two best probabilities. ``logits [rows, vocabulary]`` are unmodified."""
    known = logits.float().log_softmax(dim=-1)
    chosen = known.gather(1, torch.tensor(tokens, device=known.device)[:, None])
    probabilities = known.exp()
    best = probabilities.topk(2, dim=-1).values
    return torch.cat([chosen, torch.special.entr(probabilities).sum(-1, keepdim=True), best[:, :1] - best[:, 1:]], 1)


FIRST = 100
"""Number of recorded candidates for the first token."""


class Confidence:
    """Collects the triples of one output and the ``top`` likeliest tokens at each position. Everything stays on the
    device until the end, so that no step waits for it."""

    def __init__(self, top: int = 0) -> None:
        self._parts: list[Tensor] = []
        self._top, self._likeliest = top, list[tuple[Tensor, Tensor]]()
        self._first: Tensor | None = None

    def add(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """Add a step's ``tokens`` and the logits ``[rows, vocabulary]`` they were selected from."""
        if self._first is None:
            self._first = logits[0].float().log_softmax(dim=-1)
        self._parts.append(confidence(logits, tokens))
        if self._top:
            known = logits.float().log_softmax(dim=-1)
            values, ids = known.topk(min(self._top, known.shape[-1]), dim=-1)
            self._likeliest.append((ids, values))

    def first(self) -> list[tuple[int, float]]:
        """The likeliest first tokens with their log-probabilities, the likeliest first."""
        if self._first is None:
            return []
        values, ids = self._first.topk(min(FIRST, len(self._first)))
        return list(zip(ids.tolist(), values.tolist(), strict=True))

    def triples(self, tokens: int) -> list[Triple]:
        """The triples of the first ``tokens`` tokens. The output may have ended within a step."""
        rows = torch.cat(self._parts)[:tokens].tolist() if self._parts else []
        return [rounded(logprob, entropy, margin) for logprob, entropy, margin in rows]

    def top(self, tokens: int) -> list[list[tuple[int | str, float]]]:
        """The likeliest tokens at each of the first ``tokens`` positions, the likeliest first."""
        rows = [row for ids, values in self._likeliest for row in zip(ids.tolist(), values.tolist(), strict=True)]
        return [[(i, round(value, 5) + 0.0) for i, value in zip(*row, strict=True)] for row in rows[:tokens]]
