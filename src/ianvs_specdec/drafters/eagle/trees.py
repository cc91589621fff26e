"""How a draft grows out of an EAGLE head: EAGLE-2's dynamic tree and the chain. (The static tree: ``static``.)

Each function is a generator (see ``lockstep``) that asks the head for logits and returns the tree. The order of nodes
is that of the official implementation: level by level, within a level by the order of the parents, then by rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.guesses import Guesses
from ianvs_specdec.drafters.eagle.steps import Growing, Head, Level, Pairs
from ianvs_specdec.engine import TokenTree


@dataclass
class Growth:
    """One draft in the making, of ``sequence`` with the ``pairs`` that are new to it; at most ``nodes`` are drafted.
    ``least`` is the log-probability below which nothing is guessed."""

    head: Head
    sequence: Any
    pairs: Pairs
    guesses: Guesses
    root: int
    nodes: int
    least: float

    @property
    def weighs(self) -> bool:
        """Whether probabilities have to be known before the end."""
        return self.least > -math.inf or not self.guesses.plain


def chain(growth: Growth, depth: int) -> Growing:
    """The best guess, or with drawing guesses one draw, at each of ``depth`` positions."""
    guesses = growth.guesses
    levels = min(depth, growth.nodes)
    drafted: list[Tensor] = []
    drawn_from: dict[int, Tensor] = {}
    likelihood = 0.0
    logits = yield growth.sequence, growth.pairs
    for level in range(levels):
        if not growth.weighs:
            index = logits.argmax(dim=-1)
        else:
            scores, known = guesses.scores(logits, level + 1)
            index = scores.argmax(dim=-1)
            likelihood += float(known[0, index])
            # What was drawn has to be proposed, or the proposals are no draws from q any more; what follows it has not.
            if likelihood < growth.least and not guesses.draws:
                break
            if guesses.draws:
                drawn_from[level] = known[0].exp()
        token = guesses.tokens(index)
        drafted.append(token)
        if level + 1 == levels or likelihood < growth.least:
            break
        logits = yield growth.sequence, Level(token, level + 1)
    return TokenTree.chain(growth.root, torch.cat(drafted).tolist() if drafted else (), drawn_from or None)


class _Candidates:
    """All candidates of a dynamic tree, level by level: ``width`` children of the root, then ``width`` children of each
    node of a beam. Nothing scored lower than ``bar`` can be among the ``nodes`` best any more, or is wanted at all."""

    def __init__(self, width: int, nodes: int, least: float) -> None:
        self.bar = least
        self._width, self._nodes = width, nodes
        self._scores: list[Tensor] = []
        self._tokens: list[Tensor] = []
        self._beams: list[Tensor] = []
        self._best = torch.empty(0)

    def add(self, scores: Tensor, tokens: Tensor, beam: Tensor | None) -> None:
        """Candidates, flat; ``beam`` says which candidates of the level before they are the children of."""
        if beam is not None:
            self._beams.append(beam)
        self._scores.append(scores)
        self._tokens.append(tokens)
        self._best = torch.cat([self._best.to(scores), scores])
        if len(self._best) >= self._nodes:
            self._best = self._best.topk(self._nodes).values
            self.bar = max(self.bar, float(self._best[-1]))

    def tree(self, root: int, least: float) -> TokenTree:
        """The tree of the best candidates, in pool order; none below ``least``."""
        scores = torch.cat(self._scores)
        order = scores.topk(min(self._nodes, len(scores))).indices.sort().values
        if least > -math.inf:
            order = order[scores[order] >= least]
        parents = self._parents(order.tolist())
        if parents is None:
            order = scores.sort(descending=True, stable=True).indices[: len(order)].sort().values
            parents = self._parents(order.tolist())
            assert parents is not None
        return TokenTree([root, *torch.cat(self._tokens)[order].tolist()], [-1, *parents])

    def _parents(self, chosen: list[int]) -> list[int] | None:
        """The parents' nodes in the tree; None where a parent was left out, which takes a tie with its child."""
        origins, start = [-1] * self._width, 0
        for beam in self._beams:
            above, start = start, len(origins)
            origins += [above + place for place in beam.tolist() for _ in range(self._width)]
        node_of = {-1: 0} | {candidate: node for node, candidate in enumerate(chosen, start=1)}
        parents = [node_of.get(origins[candidate], -1) for candidate in chosen]
        return None if -1 in parents else parents


def dynamic(growth: Growth, depth: int, top_k: int) -> Growing:
    """EAGLE-2's tree (Li et al. 2024, arXiv 2406.16858): of all candidates down to ``depth`` those with the highest
    cumulative probability.

    Each level takes ``top_k`` children of each node in a beam of the ``top_k`` best. What cannot be in the tree is not
    drafted: more levels or siblings than it has nodes, and children of nodes that are its last already or below.
    """
    guesses, device = growth.guesses, growth.head.device
    width = min(top_k, growth.nodes, growth.head.config.draft_vocabulary)
    levels = min(depth, growth.nodes)
    least = max(growth.least, torch.finfo(torch.float32).min) if growth.weighs else growth.least
    pool = _Candidates(width, growth.nodes, least)
    own = torch.full((width, width), -torch.inf, device=device).fill_diagonal_(0)
    mask = own.new_full((1, levels * width), -torch.inf)
    seen = 0
    scores, beam = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.long, device=device)
    logits = yield growth.sequence, growth.pairs
    for level in range(1, levels + 1):
        best = guesses.scores(logits, level)[0].topk(width, dim=-1)
        candidates = guesses.tokens(best.indices.flatten())
        cumulative = (best.values + scores[:, None]).flatten()
        pool.add(cumulative, candidates, beam if level > 1 else None)
        if level == levels:
            break
        scores, beam = cumulative.topk(width)
        rows = sum(score > pool.bar for score in scores.tolist())
        if rows == 0:
            break
        scores, beam = scores[:rows], beam[:rows]
        parents = beam // width
        mask = mask.index_select(0, parents)
        mask[:, seen : seen + rows] = own[:rows, :rows]
        seen += rows
        drafted_on = candidates.index_select(0, beam)
        logits = yield growth.sequence, Level(drafted_on, level, parents, mask[:, :seen])
    return pool.tree(growth.root, least)
