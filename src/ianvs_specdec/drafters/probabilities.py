"""Draft probabilities from a drafter's logits, processed as the target's."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ianvs_specdec.engine import Context, TokenTree
from ianvs_specdec.engine.sampling import Processor


def log_probabilities(context: Context, processor: Processor, logits: Tensor, positions: Sequence[int]) -> Tensor:
    """Log-probability ``[rows, vocabulary]`` of each token at the ``positions`` of the rows.

    ``logits [rows, vocabulary]`` are processed as the target's. With coupled sampling it is the probability that the
    shared noise selects the token. NaN becomes a uniform distribution.
    """
    greedy = context.sampling.greedy
    known = processor.scores(logits).log_softmax(dim=-1) if greedy else processor.probabilities(logits).log()
    known = known.nan_to_num(nan=-math.log(known.shape[-1]), neginf=-math.inf)
    if greedy or context.noise is None:
        return known
    noise = torch.stack([context.noise.at(position) for position in positions])
    return (known + noise).log_softmax(dim=-1)


def least_log(context: Context) -> float:
    """Log-probability of a path below which nothing is drafted."""
    return math.log(context.confidence) if context.confidence > 0 else -math.inf


def draws(context: Context) -> bool:
    """Whether draft tokens are drawn at random (rejection sampling) rather than the likeliest ones."""
    return not context.sampling.greedy and context.noise is None


class ChainDraft:
    """A growing chain of at most ``depth`` tokens: the likeliest ones, or drawn ones."""

    def __init__(self, context: Context, device: torch.device, depth: int) -> None:
        self._context, self._depth, self._draws = context, depth, draws(context)
        self._processor = Processor(context.sampling, context.tokens, device)
        self._tokens: list[int] = []
        self._drawn_from: dict[int, Tensor] = {}
        self._score, self.ended = 0.0, False

    def add(self, logits: Tensor) -> int:
        """Append tokens by ``logits [rows, vocabulary]`` of the next positions until the chain is long enough or its
        probability too low. Returns the last token of the rows."""
        context = self._context
        start = len(context.tokens) + len(self._tokens)
        known = log_probabilities(context, self._processor, logits, range(start, start + len(logits)))
        best = known.max(dim=-1)
        tokens = best.indices
        if self._draws:
            tokens = torch.multinomial(known.exp(), 1, generator=context.generator)[:, 0]
        for row, (value, token) in enumerate(zip(best.values.tolist(), tokens.tolist(), strict=True)):
            # Of the likeliest token even if another was drawn: the length must not depend on the draw.
            self._score += value
            too_unlikely = self._score < least_log(context) or self._score == -math.inf
            self.ended = self.ended or too_unlikely or len(self._tokens) == self._depth
            if not self.ended:
                if self._draws:
                    self._drawn_from[len(self._tokens)] = known[row].exp()
                self._tokens.append(token)
                self._processor.extend(token)
        return int(tokens[-1])

    def tree(self) -> TokenTree:
        return TokenTree.chain(self._context.tokens[-1], self._tokens, self._drawn_from or None)
