"""What a drafter's logits say about the next tokens, given how the target's tokens are chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ianvs_specdec.engine import Context
from ianvs_specdec.engine.sampling import Processor


def log_probabilities(context: Context, processor: Processor, logits: Tensor, positions: Sequence[int]) -> Tensor:
    """Log-probability, ``[rows, vocabulary]``, that the target takes each token at the ``positions`` of the rows.

    To ``logits [rows, vocabulary]`` is done what is done to the target's. With coupled sampling it is the probability
    that the shared noise picks the token. Where a drafter's numbers overflow, all tokens are equally likely.
    """
    greedy = context.sampling.greedy
    known = processor.scores(logits).log_softmax(dim=-1) if greedy else processor.probabilities(logits).log()
    known = known.nan_to_num(nan=-math.log(known.shape[-1]), neginf=-math.inf)
    if greedy or context.noise is None:
        return known
    noise = torch.stack([context.noise.at(position) for position in positions])
    return (known + noise).log_softmax(dim=-1)


def least_log(context: Context) -> float:
    """The log-probability below which nothing is guessed."""
    return math.log(context.confidence) if context.confidence > 0 else -math.inf
