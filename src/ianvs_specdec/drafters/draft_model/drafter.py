"""A smaller LM drafts (Leviathan et al. 2023; Chen et al. 2023), a chain or a tree."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.drafters.draft_model.files import check_branches, load_draft
from ianvs_specdec.drafters.draft_model.sequence import DraftSequence, Growing, RewindingSequence
from ianvs_specdec.drafters.draft_model.translation import Translation
from ianvs_specdec.drafters.lockstep import alone, lockstep, only
from ianvs_specdec.drafters.probabilities import least_log, log_probabilities
from ianvs_specdec.engine import Context, Drafter, Output, Target, TokenTree
from ianvs_specdec.engine.sampling import Processor

CHOICES = 5
"""Tokens behind each of its own that a draft model names as likely: the target seldom takes any other."""


class DraftModel(Drafter):
    """Any causal LM folder in Hugging Face format drafts, in the target's dtype and on its device.

    With ``branches`` 1 the draft is a chain. With more, every level continues the ``branches`` best nodes of the level
    before, each by as many children, and those nodes of all levels are verified that score best, as in EAGLE-2 (Li et
    al. 2024); drafting ends when no deeper node can be among them. A node's score is the probability that it is
    reached: along its path, that of the likeliest child for a first child, of the second likeliest for a second.

    Children are the likeliest ones in greedy and coupled sampling. In rejection sampling they are drawn, siblings
    without replacement, and the score does not look at what was drawn: whether a child is verified depends on what
    scores better than the child, not on which token it is, so that it follows the distribution it was drawn from.

    A draft model with another tokenizer reads the text so far in its own tokens, and the text that it writes becomes
    the target's tokens. Such drafts are the likeliest chain, without probabilities: text has many ways into tokens.

    Raises ``UserError`` from ``prepare`` for a folder that cannot be loaded, and for ``branches`` with another
    tokenizer.
    """

    def __init__(self, draft: str | Path, branches: int = 1) -> None:
        self._folder = Path(draft)
        self.branches = branches
        self._target: Target | None = None
        self._sequence: DraftSequence | None = None
        self.translation: Translation | None = None
        """Where the draft model has another tokenizer."""
        self._reached = 0

    def prepare(self, target: Target) -> Sequence[int]:
        if self._target is not target:
            self._model, self.translation = load_draft(self._folder, target)
            if self.translation is not None:
                check_branches(self.branches)
            self._target = target
        return ()

    @property
    def unread_tokens(self) -> int:
        if self._sequence is None:
            return 0
        if self.translation is not None:
            return max(0, len(self._context.tokens) - self._reached)
        return self._sequence.unread_tokens(self._context.tokens)

    @property
    def batch_key(self) -> Target:
        return self._model

    def memory(self, positions: int) -> int:
        if self._target is None:
            return 0
        # Another tokenizer may need more tokens for the same text.
        return self._model.memory(positions if self.translation is None else 2 * positions)

    def weights(self) -> Sequence[Any]:
        return self._model.weights

    def fork(self) -> DraftModel:
        another = copy.copy(self)
        another._sequence = None
        return another

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._vocabulary = prefill.logits.shape[-1]
        self.end()
        sequence = DraftSequence if self.translation is None else RewindingSequence
        self._sequence, self._context, self._reached = sequence(self._model), context, 0

    def end(self) -> None:
        if self._sequence is not None:
            self._sequence.close()
            self._sequence = None

    @property
    def supports_continuations(self) -> bool:  # type: ignore[override]
        return self.branches == 1 and self.translation is None

    def continuations(self, context: Context) -> _Continuations:
        assert self._sequence is not None
        levels = self._sequence.reach(context.tokens)
        if levels > 0:
            alone(self._model, self._sequence.follow(context.tokens))
        return _Continuations(self, context, levels)

    def propose(self, context: Context, budget: int) -> TokenTree:
        return only(self.propose_all([(self, context, budget)]))

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[DraftModel, Context, int]]) -> list[TokenTree | Exception]:
        growths = [
            drafter._grow(context, budget) if drafter.translation is None else drafter._grow_text(context, budget)
            for drafter, context, budget in drafts
        ]
        return lockstep(drafts[0][0]._model, growths)

    def _grow(self, context: Context, budget: int) -> Growing:
        assert self._sequence is not None
        levels = min(budget, context.remaining - 1, self._sequence.reach(context.tokens))
        if levels < 1:
            return TokenTree.chain(context.tokens[-1])
        yield from self._sequence.follow(context.tokens)
        growth, least = _Growth(context, self._model.device), least_log(context)
        frontier: list[int] = [0]
        best: list[int] = []
        for level in range(levels):
            first = len(growth.tokens)
            logits = yield from self._sequence.logits((growth.tokens, growth.parents), frontier)
            scores = self._scores(growth, frontier, logits, context, [len(context.tokens) + level] * len(frontier))
            self._add_children(growth, frontier, scores, context, least)
            best = growth.best(range(1, len(growth.tokens)), budget)
            frontier = growth.best([node for node in best if node >= first], self.branches)
            if not frontier:
                break
        return growth.tree([0, *sorted(best)])

    def _grow_text(self, context: Context, budget: int) -> Growing:
        """The likeliest chain in the draft model's tokens, of as many as may be drafted, in the target's."""
        assert self.translation is not None
        assert isinstance(self._sequence, RewindingSequence)
        read, drafted = self.translation.read(context.tokens), list[int]()
        room = min(budget, context.remaining - 1)
        if room > 0 and len(read) > 1:
            self._sequence.rewind(read)
            levels = min(room, self._sequence.reach(read))
            if levels > 0:
                yield from self._sequence.follow(read)
            chance, least = 0.0, least_log(context)
            while len(drafted) < levels:
                tree = [read[-1], *drafted], [*range(-1, len(drafted))]
                logits = yield from self._sequence.logits(tree, [len(drafted)])
                value, token = logits[0].log_softmax(dim=-1).max(dim=-1)
                chance += float(value)
                if not chance >= least or int(token) in self.translation.ends:
                    break
                drafted.append(int(token))
        written = self.translation.write(context.tokens, read, drafted)[:room]
        known = list(takewhile(lambda token: token < self._vocabulary, written))
        self._reached = len(context.tokens) + len(known)
        return TokenTree.chain(context.tokens[-1], known)

    def _add_children(
        self, growth: _Growth, frontier: list[int], scores: Tensor, context: Context, least: float
    ) -> None:
        width = min(self.branches, self._vocabulary)
        top = scores.topk(width, dim=-1)
        tokens = top.indices
        if not context.sampling.greedy and context.noise is None:
            q = scores.exp()
            tokens = torch.multinomial(q, width, generator=context.generator)
            growth.drawn_from.update(zip(frontier, q, strict=True))
        for parent, values, children in zip(frontier, top.values.tolist(), tokens.tolist(), strict=True):
            for value, token in zip(values, children, strict=True):
                if value > -math.inf and growth.scores[parent] + value >= least:
                    growth.add(parent, token, value)

    def _scores(
        self, growth: _Growth, nodes: list[int], logits: Tensor, context: Context, positions: Sequence[int]
    ) -> Tensor:
        """Log-probability, ``[nodes, vocabulary]``, that the target takes this token at the node's position, as far as
        the draft's ``logits`` after ``nodes`` can tell."""
        missing = self._vocabulary - logits.shape[-1]
        if missing:
            # Cut or filled up to the target's vocabulary.
            logits = functional.pad(logits, (0, missing), value=-math.inf)
        parts = zip(nodes, logits.split(1), positions, strict=True)
        return torch.cat([log_probabilities(context, growth.processor(n), row, [place]) for n, row, place in parts])


class _Continuations:
    """The guesses of a draft model behind a context, of at most ``levels`` tokens (see ``contracts.Continuations``)."""

    def __init__(self, drafter: DraftModel, context: Context, levels: int) -> None:
        self._drafter, self._context, self._levels, self._held = drafter, context, levels, len(context.tokens)
        self._growth = _Growth(context, drafter._model.device)
        self._depths = [0]

    def grow(self, nodes: Sequence[int]) -> list[list[tuple[int, float]]]:
        drafter, growth = self._drafter, self._growth
        asked = [node for node in nodes if self._depths[node] < self._levels]
        if not asked:
            return [[] for _ in nodes]
        assert drafter._sequence is not None
        logits = alone(drafter._model, drafter._sequence.logits((growth.tokens, growth.parents), asked))
        positions = [self._held + self._depths[node] for node in asked]
        scores = drafter._scores(growth, asked, logits, self._context, positions)
        top = scores.topk(min(CHOICES, drafter._vocabulary), dim=-1)
        rows = dict(zip(asked, zip(top.indices.tolist(), top.values.tolist(), strict=True), strict=True))
        return [self._add(node, *rows.get(node, ([], []))) for node in nodes]

    def _add(self, node: int, tokens: list[int], scores: list[float]) -> list[tuple[int, float]]:
        likely = [(token, score) for token, score in zip(tokens, scores, strict=True) if score > -math.inf]
        for token, score in likely:
            self._growth.add(node, token, score)
            self._depths.append(self._depths[node] + 1)
        return [(token, math.exp(score)) for token, score in likely]


class _Growth:
    """A tree in the making. ``scores`` are log-probabilities of being reached."""

    def __init__(self, context: Context, device: torch.device) -> None:
        self.tokens, self.parents, self.scores = [context.tokens[-1]], [-1], [0.0]
        self.drawn_from: dict[int, Tensor] = {}
        self._processors = {0: Processor(context.sampling, context.tokens, device)}

    def add(self, parent: int, token: int, score: float) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(self.scores[parent] + score)

    def processor(self, node: int) -> Processor:
        """The processor whose history ends with ``node``."""
        if node not in self._processors:
            self._processors[node] = self.processor(self.parents[node]).fork()
            self._processors[node].extend(self.tokens[node])
        return self._processors[node]

    def best(self, nodes: Sequence[int], count: int) -> list[int]:
        """The ``count`` best of ``nodes``, which ascend; a parent before its equally good children."""
        return sorted(nodes, key=lambda node: -self.scores[node])[:count]

    def tree(self, nodes: Sequence[int]) -> TokenTree:
        """The tree of these ascending ``nodes``, the root and every node's parent among them."""
        number = {node: i for i, node in enumerate(nodes)}
        parents = [-1, *(number[self.parents[node]] for node in nodes[1:])]
        drawn_from = {number[node]: q for node, q in self.drawn_from.items() if number.get(node) in parents}
        return TokenTree([self.tokens[node] for node in nodes], parents, drawn_from or None)
