"""What a head's logits say about the next token, given how the target's tokens are chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.steps import Head
from ianvs_specdec.drafters.probabilities import log_probabilities
from ianvs_specdec.engine import Context
from ianvs_specdec.engine.sampling import Processor, by_probability


class Guesses:
    """Turns logits into scores that rank the candidates for a position, for one step of one request.

    Scores are the head's log-probabilities (see ``probabilities``). With ``draws`` (rejection sampling), fresh noise is
    added to them: the best k are k draws without replacement, in the order in which they were drawn.

    Scores are over the target's vocabulary, or where tokens rank by the head's probabilities as they are, over the
    draft vocabulary; ``tokens`` makes target ids of their indices.
    """

    def __init__(self, context: Context, head: Head, draws: bool) -> None:
        self._context, self._head = context, head
        self.plain = by_probability(context.sampling)
        self.draws = draws and not context.sampling.greedy and context.noise is None
        self._processor = Processor(context.sampling, context.tokens, head.device)

    def scores(self, logits: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Scores and log-probabilities, both ``[rows, vocabulary]``, of the tokens at distance ``depth`` (from 1) from
        the root."""
        if not self.plain:
            logits = self._widened(logits)
        positions = [len(self._context.tokens) + depth - 1] * len(logits)
        known = log_probabilities(self._context, self._processor, logits, positions)
        if not self.draws:
            return known, known
        gumbel = torch.empty_like(known).exponential_(generator=self._context.generator).log_().neg_()
        return known + gumbel, known

    def tokens(self, indices: Tensor) -> Tensor:
        known = self._head.vocabulary_map
        return indices if known is None or not self.plain else known[indices]

    def _widened(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary; tokens that the head does not know are impossible."""
        if self._head.vocabulary_map is None:
            return logits
        wide = logits.new_full((len(logits), self._head.vocabulary), -torch.inf)
        wide[:, self._head.vocabulary_map] = logits
        return wide
