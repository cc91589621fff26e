"""Drafting with an EAGLE head: EAGLE-2's dynamic tree, and trees of a fixed shape, EAGLE-1's and the chain.

Each function is a generator (see ``lockstep``) that requests logits and returns the tree. Nodes are ordered as in the
official implementation: by level, within a level by parents, then by rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle.steps import Growing, Head, Level
from ianvs_specdec.drafters.hidden_states import Pairs
from ianvs_specdec.drafters.probabilities import draws, log_probabilities
from ianvs_specdec.engine import Context, TokenTree
from ianvs_specdec.engine.sampling import Processor, by_probability

Path = tuple[int, ...]
Paths = tuple[Path, ...]


class Guesses:
    """Turns logits into scores that rank the candidates of a position, for one step of one request.

    Scores are log-probabilities (see ``probabilities``). With ``draws`` (rejection sampling), fresh noise is added: the
    best k are k draws without replacement, in the order of drawing.

    Scores are over the target's vocabulary, or over the draft vocabulary if tokens rank by unmodified probabilities;
    ``tokens`` converts their indices to target ids.
    """

    def __init__(self, context: Context, head: Head, random: bool) -> None:
        self._context, self._head = context, head
        self.plain = by_probability(context.sampling)
        self.draws = random and draws(context)
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
        """Logits over the target's vocabulary; tokens outside the draft vocabulary are impossible."""
        if self._head.vocabulary_map is None:
            return logits
        wide = logits.new_full((len(logits), self._head.vocabulary), -torch.inf)
        wide[:, self._head.vocabulary_map] = logits
        return wide


@dataclass
class Growth:
    """A growing draft of at most ``nodes`` nodes, of a ``sequence`` with unread ``pairs``. ``least`` is the minimum
    log-probability of a path."""

    head: Head
    sequence: Any
    pairs: Pairs
    guesses: Guesses
    root: int
    nodes: int
    least: float


_PUBLISHED = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
PATHS: Paths = tuple(tuple(int(rank) for rank in path) for path in _PUBLISHED.split())
"""EAGLE-1's tree, level by level; a path has the ranks of its nodes among their siblings."""

_RANK_RATES = (0.6, 0.2, 0.1, 0.05)


@cache
def limited(nodes: int, depth: int | None = None, top_k: int | None = None) -> Paths:
    """EAGLE-1's tree down to ``depth`` and to the ``top_k`` best children, and of that the ``nodes`` nodes with the
    highest hit rates by rank."""
    allowed = [path for path in PATHS if (depth is None or len(path) <= depth) and (top_k is None or max(path) < top_k)]
    ranked = sorted(allowed, key=lambda path: -math.prod(_RANK_RATES[rank] for rank in path))
    return tuple(sorted(ranked[:nodes], key=lambda path: (len(path), path)))


def static(growth: Growth, paths: Paths) -> Growing:
    """The tree of these ``paths`` (by level, not empty), less unlikely ones.

    Draws must be proposed whatever they are, else they are no draws from q. Only impossible ones and children of
    unlikely ones are omitted.
    """
    guesses, device = growth.guesses, growth.head.device
    inner = {path[:-1] for path in paths}
    tree = TokenTree([growth.root], [-1])
    nodes: dict[Path, int] = {(): 0}
    weights: dict[Path, float] = {(): 0.0}
    drawn_from: dict[int, Tensor] = {}
    rows: list[Path] = [()]
    drafted: list[Path] = []
    logits = yield growth.sequence, growth.pairs
    for depth in range(1, len(paths[-1]) + 1):
        scores, known = guesses.scores(logits, depth)
        here = [path for path in paths if len(path) == depth and path[:-1] in rows]
        best = scores.topk(max(path[-1] for path in here) + 1, dim=-1).indices
        tokens, likely = guesses.tokens(best).tolist(), known.gather(1, best).tolist()
        if guesses.draws:
            drawn_from |= {nodes[path]: q for path, q in zip(rows, known.exp(), strict=True)}
        for path in here:
            row, rank = rows.index(path[:-1]), path[-1]
            weight = weights[path[:-1]] + likely[row][rank]
            if weight > -math.inf and (guesses.draws or weight >= growth.least):
                nodes[path], weights[path] = len(tree.tokens), weight
                tree.tokens.append(tokens[row][rank])
                tree.parents.append(nodes[path[:-1]])
        grown = [path for path in here if path in inner and path in nodes and weights[path] >= growth.least]
        if not grown:
            break
        drafted += grown
        seen = [[0.0 if path[: len(other)] == other else -math.inf for other in drafted] for path in grown]
        level = torch.tensor([tree.tokens[nodes[path]] for path in grown], device=device)
        above = torch.tensor([rows.index(path[:-1]) for path in grown], device=device)
        rows = grown
        # In a chain each row sees all earlier ones.
        mask = None if len(drafted) == depth else torch.tensor(seen, device=device)
        logits = yield growth.sequence, Level(level, depth, above, mask)
    tree.probabilities = drawn_from or None
    return tree


class _Candidates:
    """All candidates of a dynamic tree by level: ``width`` children of the root, then ``width`` children of each node
    of a beam. Candidates scored below ``bar`` cannot be among the ``nodes`` best, or are too unlikely."""

    def __init__(self, width: int, nodes: int, least: float) -> None:
        self.bar = least
        self._width, self._nodes = width, nodes
        self._scores: list[Tensor] = []
        self._tokens: list[Tensor] = []
        self._beams: list[Tensor] = []
        self._best = torch.empty(0)

    def add(self, scores: Tensor, tokens: Tensor, beam: Tensor | None) -> None:
        """Add candidates, flat; ``beam`` are the indices of their parents among the previous level's candidates."""
        if beam is not None:
            self._beams.append(beam)
        self._scores.append(scores)
        self._tokens.append(tokens)
        self._best = torch.cat([self._best.to(scores), scores])
        if len(self._best) >= self._nodes:
            self._best = self._best.topk(self._nodes).values
            self.bar = max(self.bar, float(self._best[-1]))

    def tree(self, root: int, least: float) -> TokenTree:
        """The tree of the best candidates in pool order; none below ``least``."""
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
        """The parents' nodes in the tree; None if a parent was omitted, which takes a tie with its child."""
        origins, start = [-1] * self._width, 0
        for beam in self._beams:
            above, start = start, len(origins)
            origins += [above + place for place in beam.tolist() for _ in range(self._width)]
        node_of = {-1: 0} | {candidate: node for node, candidate in enumerate(chosen, start=1)}
        parents = [node_of.get(origins[candidate], -1) for candidate in chosen]
        return None if -1 in parents else parents


def dynamic(growth: Growth, depth: int, top_k: int) -> Growing:
    """EAGLE-2's tree (Li et al. 2024, arXiv 2406.16858): the candidates down to ``depth`` with the highest cumulative
    probability.

    Each level takes ``top_k`` children of each node in a beam of the ``top_k`` best. Candidates that cannot be in the
    tree are not computed: more levels or siblings than it has nodes, and children of its last nodes or of lower ones.
    """
    guesses, device = growth.guesses, growth.head.device
    width = min(top_k, growth.nodes, growth.head.config.draft_vocabulary)
    levels = min(depth, growth.nodes)
    # Impossible tokens have scores of minus infinity, which do not occur in plain log-probabilities.
    least = growth.least if guesses.plain else max(growth.least, torch.finfo(torch.float32).min)
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
