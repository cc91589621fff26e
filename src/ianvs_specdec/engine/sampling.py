"""From logits to the sampling distribution, as in transformers.

The order is transformers': repetition penalty, temperature, top-k, top-p, all in float32. Greedy decoding applies the
repetition penalty only.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ianvs_specdec.common.types import Sampling

_POSITIONS_KEPT = 64
"""Positions whose noise is cached: those of one tree, for drafter and target."""


def by_probability(sampling: Sampling) -> bool:
    """Whether tokens rank by unmodified probabilities: greedy decoding without a repetition penalty."""
    return sampling.greedy and sampling.repetition_penalty == 1.0


def top_k_filter(scores: Tensor, k: int) -> Tensor:
    """Keep the ``k`` best of ``scores [..., vocabulary]`` and ties with the k-th."""
    threshold = scores.topk(min(k, scores.shape[-1])).values[..., -1:]
    return scores.masked_fill(scores < threshold, -torch.inf)


def top_p_filter(scores: Tensor, p: float) -> Tensor:
    """Keep the smallest set of best ``scores [..., vocabulary]`` whose probability reaches ``p``; at least one."""
    ascending, order = scores.sort(descending=False)
    dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= (1 - p)
    dropped[..., -1] = False
    return scores.masked_fill(dropped.scatter(-1, order, dropped), -torch.inf)


class Processor:
    """Turns logits into scores or probabilities, given the token history.

    The history is the prompt and all tokens passed to ``extend``; inside a tree the penalty follows the path.
    """

    def __init__(self, sampling: Sampling, prompt_ids: Sequence[int], device: torch.device) -> None:
        self._sampling = sampling
        self._penalised = sampling.repetition_penalty != 1.0
        self._history = set(prompt_ids) if self._penalised else set()
        self._seen = torch.tensor(list(self._history), dtype=torch.long, device=device)

    def extend(self, token: int) -> None:
        if self._penalised and token not in self._history:
            self._history.add(token)
            self._seen = torch.cat([self._seen, self._seen.new_tensor([token])])

    def fork(self) -> Processor:
        """A processor with a copy of the history."""
        if not self._penalised:
            return self
        branch = copy.copy(self)
        branch._history = set(self._history)
        return branch

    def scores(self, logits: Tensor) -> Tensor:
        """Float32 logits ``[..., vocabulary]`` with the repetition penalty applied."""
        logits = logits.float()
        if not self._penalised:
            return logits
        seen = logits[..., self._seen]
        penalty = self._sampling.repetition_penalty
        return logits.index_copy(-1, self._seen, torch.where(seen < 0, seen * penalty, seen / penalty))

    def probabilities(self, logits: Tensor) -> Tensor:
        """The sampling distribution, float32 ``[..., vocabulary]`` (temperature above 0)."""
        scores = self.scores(logits) / self._sampling.temperature
        if self._sampling.top_k:
            scores = top_k_filter(scores, self._sampling.top_k)
        if self._sampling.top_p < 1:
            scores = top_p_filter(scores, self._sampling.top_p)
        return scores.softmax(dim=-1)


class Noise:
    """Gumbel noise keyed by seed and position: every sampler draws the same token at a position.

    The token is the argmax of log-probability plus noise (the Gumbel-max trick), so it depends on distribution and seed
    only, not on the size of the step. Noise is made on the CPU and equal on every device.
    """

    def __init__(self, seed: int, vocabulary: int, device: torch.device) -> None:
        self._seed, self._vocabulary, self._device = seed, vocabulary, device
        self._generator = torch.Generator()
        self._kept: dict[int, Tensor] = {}

    def at(self, position: int) -> Tensor:
        """Noise for the token at index ``position`` of prompt and output, float32 ``[vocabulary]``."""
        if position not in self._kept:
            if len(self._kept) == _POSITIONS_KEPT:
                del self._kept[next(iter(self._kept))]
            key = hashlib.blake2b(f"{self._seed}/{position}".encode(), digest_size=8).digest()
            self._generator.manual_seed(int.from_bytes(key, "little") >> 1)
            uniform = torch.rand(self._vocabulary, generator=self._generator, dtype=torch.float64)
            # The inner logarithm needs all digits: the largest noise comes from numbers close to 1.
            self._kept[position] = uniform.log_().neg_().float().log_().neg_().to(self._device)
        return self._kept[position]
