"""A smaller LM with the same tokenizer drafts (Leviathan et al. 2023; Chen et al. 2023), a chain or a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ianvs_specdec.decoding import Context, Drafter, Output, Target, TokenTree
from ianvs_specdec.decoding.sampling import Processor
from ianvs_specdec.drafters.draft_sequence import DraftSequence
from ianvs_specdec.drafters.draft_vocabulary import load_draft


class DraftModel(Drafter):
    """Any causal LM folder in Hugging Face format drafts, in the target's dtype and on its device.

    With ``branches`` 1 the draft is a chain. With more, every level continues the ``branches`` likeliest nodes of the
    level before, each by as many children. Where children are chosen (greedy and coupled sampling), the nodes of all
    levels that are likeliest reached are verified, as in EAGLE-2 (Li et al. 2024), and drafting ends when no deeper
    node can be among them. Where they are drawn (rejection sampling), siblings are drawn without replacement and all
    are verified: leaving some out for what they turned out to be would bias the output.

    Raises ``UserError`` from ``prepare`` for a folder that cannot be loaded and for another tokenizer.
    """

    def __init__(self, draft: str | Path, branches: int = 1) -> None:
        self._folder = Path(draft)
        self._branches = branches
        self._target: Target | None = None

    def prepare(self, target: Target) -> Sequence[int]:
        if self._target is not target:
            self._sequence = DraftSequence(load_draft(self._folder, target))
            self._target = target
        return ()

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._vocabulary = prefill.logits.shape[-1]
        self._processor = Processor(context.sampling, context.tokens, target.device)
        self._processed = len(context.tokens)
        self._sequence.clear()

    def propose(self, context: Context, budget: int) -> TokenTree:
        levels = min(budget, context.remaining - 1, self._sequence.reach(context.tokens))
        if levels < 1:
            return TokenTree.chain(context.tokens[-1])
        for token in context.tokens[self._processed :]:
            self._processor.extend(token)
        self._processed = len(context.tokens)
        self._sequence.follow(context.tokens)
        growth = _Growth(context.tokens[-1], self._processor)
        threshold = math.log(context.confidence) if context.confidence > 0 else -math.inf
        if context.sampling.greedy or context.noise is not None:
            return self._choose(growth, context, budget, levels, threshold)
        return self._draw(growth, context, budget, levels, threshold)

    def _choose(self, growth: _Growth, context: Context, budget: int, levels: int, threshold: float) -> TokenTree:
        """The ``budget`` nodes that are likeliest reached, of those that a beam of ``branches`` finds."""
        frontier: list[int] = [0]
        best: list[int] = []
        for level in range(levels):
            scores = self._scores(growth, frontier, context, len(context.tokens) + level)
            top = scores.topk(min(self._branches, scores.shape[-1]), dim=-1)
            first = len(growth.tokens)
            for parent, values, tokens in zip(frontier, top.values.tolist(), top.indices.tolist(), strict=True):
                for value, token in zip(values, tokens, strict=True):
                    if value > -math.inf and growth.scores[parent] + value >= threshold:
                        growth.add(parent, token, value)
            best = growth.best(range(1, len(growth.tokens)), budget)
            frontier = growth.best([node for node in best if node >= first], self._branches)
            if not frontier:
                break
        return growth.tree([0, *sorted(best)])

    def _scores(self, growth: _Growth, frontier: list[int], context: Context, position: int) -> Tensor:
        """Log-probability, ``[frontier, vocabulary]``, that the target takes this token at ``position``, as far as the
        draft can tell."""
        rows = list(zip(self._logits(growth, frontier), map(growth.processor, frontier), strict=True))
        if context.noise is None:
            return torch.stack([processor.scores(logits) for logits, processor in rows]).log_softmax(dim=-1)
        q = torch.stack([processor.probabilities(logits) for logits, processor in rows])
        return (q.log() + context.noise.at(position)).log_softmax(dim=-1)

    def _draw(self, growth: _Growth, context: Context, budget: int, levels: int, threshold: float) -> TokenTree:
        """Children drawn from the draft's own distribution. Whether a node is continued is settled before it is drawn
        how, so that every child follows that distribution."""
        frontier = [0]
        for _ in range(levels):
            first = len(growth.tokens)
            for node, logits in zip(frontier, self._logits(growth, frontier), strict=True):
                q = growth.processor(node).probabilities(logits)
                width = min(self._branches, budget + 1 - len(growth.tokens), int(q.count_nonzero()))
                if width < 1 or growth.scores[node] + math.log(q.max()) < threshold:
                    continue
                drawn = torch.multinomial(q, width, generator=context.generator)
                growth.drawn_from[node] = q
                for token, value in zip(drawn.tolist(), q[drawn].log().tolist(), strict=True):
                    growth.add(node, token, value)
            frontier = growth.best(range(first, len(growth.tokens)), self._branches)
            if not frontier or len(growth.tokens) > budget:
                break
        return growth.tree(range(len(growth.tokens)))

    def _logits(self, growth: _Growth, frontier: list[int]) -> Tensor:
        """The draft's logits after the nodes of ``frontier``, cut or filled up to the target's vocabulary."""
        logits = self._sequence.logits((growth.tokens, growth.parents), frontier)
        missing = self._vocabulary - logits.shape[-1]
        return functional.pad(logits, (0, missing), value=-math.inf) if missing else logits


class _Growth:
    """A tree in the making. ``scores`` are log-probabilities of being reached."""

    def __init__(self, root: int, processor: Processor) -> None:
        self.tokens, self.parents, self.scores = [root], [-1], [0.0]
        self.drawn_from: dict[int, Tensor] = {}
        self._processors = {0: processor}

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
        """The tree of these ascending ``nodes``, which holds every node's parent."""
        number = {node: i for i, node in enumerate(nodes)}
        parents = [-1, *(number[self.parents[node]] for node in nodes[1:])]
        drawn_from = {number[node]: q for node, q in self.drawn_from.items()}
        return TokenTree([self.tokens[node] for node in nodes], parents, drawn_from or None)
