"""What a head's logits say about the next token, given how the target's tokens are chosen."""

from __future__ import annotations

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.steps import Head
from ianvs_specdec.engine import Context
from ianvs_specdec.engine.sampling import Processor, by_probability


class Guesses:
    """Turns logits into scores that rank the candidates for a position, for one step of one request.

    ``plain`` is greedy decoding without further settings: scores are the head's log-probabilities. With other settings
    the head's logits first get what is done to the target's. With coupled sampling, scores are the log-probabilities of
    each token being the one that the shared noise picks. With ``draws`` (rejection sampling), scores are the
    log-probabilities plus fresh noise: the best k are k draws without replacement, in the order in which they were
    drawn.

    Scores are over the target's vocabulary, in plain mode over the draft vocabulary; ``tokens`` makes target ids of
    their indices.
    """

    def __init__(self, context: Context, head: Head, draws: bool) -> None:
        sampling = context.sampling
        self._context, self._head = context, head
        self.plain = by_probability(sampling)
        self.draws = draws and not sampling.greedy and context.noise is None
        self._filtered = sampling.repetition_penalty != 1.0 or sampling.top_k > 0 or sampling.top_p < 1.0
        if self._filtered and not self.plain:
            self._processor = Processor(sampling, context.tokens, head.device)

    def scores(self, logits: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """Scores and log-probabilities, both ``[rows, vocabulary]``, of the tokens at distance ``depth`` (from 1) from
        the root."""
        if self.plain:
            known = logits.float().log_softmax(dim=-1)
            return known, known
        known = self._log_probabilities(self._widened(logits.float()))
        if self.draws:
            # What is 0 as a probability cannot be drawn: it would be accepted whatever the target thinks of it.
            known = known.exp().log()
            gumbel = torch.empty_like(known).exponential_(generator=self._context.generator).log_().neg_()
            return known + gumbel, known
        if self._context.noise is not None:
            noise = self._context.noise.at(len(self._context.tokens) + depth - 1)
            known = (known + noise).log_softmax(dim=-1)
        return known, known

    def tokens(self, indices: Tensor) -> Tensor:
        """Ids of the target's vocabulary for indices into scores."""
        known = self._head.vocabulary_map
        return indices if known is None or not self.plain else known[indices]

    def _widened(self, logits: Tensor) -> Tensor:
        """Logits over the target's vocabulary; tokens that the head does not know are impossible."""
        if self._head.vocabulary_map is None:
            return logits
        wide = logits.new_full((len(logits), self._head.vocabulary), -torch.inf)
        wide[:, self._head.vocabulary_map] = logits
        return wide

    def _log_probabilities(self, logits: Tensor) -> Tensor:
        sampling = self._context.sampling
        if not self._filtered:
            return (logits / sampling.temperature).log_softmax(dim=-1)
        if sampling.greedy:
            return torch.stack([self._processor.scores(row) for row in logits]).log_softmax(dim=-1)
        return torch.stack([self._processor.probabilities(row) for row in logits]).log()
