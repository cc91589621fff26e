"""Medusa: heads on the target's last hidden state guess several positions ahead (Cai et al. 2024, arXiv 2401.10774)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ianvs_specdec.drafters.lockstep import Growth, lockstep
from ianvs_specdec.drafters.medusa.heads import Heads, StepPart, heads_for
from ianvs_specdec.drafters.probabilities import least_log, log_probabilities
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree
from ianvs_specdec.engine.sampling import Processor, by_probability

CANDIDATES = 32
"""Maximum number of tokens of each head in a dynamic tree."""

# The tree of the official implementation for four heads ("mc_sim_7b_63"), best path first as its greedy construction
# found them on a development set. A digit is a rank among the head's guesses, its place the head.
_STATIC = (
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 0000 "
    "011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
)
STATIC_PATHS = [tuple(int(rank) for rank in path) for path in _STATIC.split()]


class Medusa(Drafter):
    """A tree over the heads' best guesses, at most ``nodes`` of them.

    Each head guesses one position independently of the others. ``tree`` selects the combinations: "dynamic" the most
    probable ones, with the product of the heads' probabilities; "static" the first of the official tree's 63; "chain"
    every head's best guess, for targets that are slow with trees.
    """

    _heads: Heads

    def __init__(self, head: str | Path, tree: str = "dynamic", nodes: int = 8) -> None:
        self._folder = Path(head)
        self._shape, self._nodes = tree, nodes
        self._target: Target | None = None

    def prepare(self, target: Target) -> Sequence[int]:
        if target is not self._target:
            self._heads = heads_for(self._folder, target)
            self._paths = _static_paths(self._shape, len(self._heads))
            self._target = target
        return (-1,)

    @property
    def batch_key(self) -> Heads:
        return self._heads

    def weights(self) -> Sequence[Any]:
        return (self._heads,)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._hidden = prefill.hidden[0][-1]

    def observe(self, observation: Observation) -> None:
        self._hidden = observation.output.hidden[0][observation.path[-1]]

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[Medusa, Context, int]]) -> list[TokenTree | Exception]:
        return lockstep(drafts[0][0]._heads, [drafter._grow(context, budget) for drafter, context, budget in drafts])

    def _grow(self, context: Context, budget: int) -> Growth[StepPart, Tensor]:
        root, nodes = context.tokens[-1], min(budget, self._nodes)
        depth = min(len(self._heads), nodes, context.remaining - 1)
        if depth < 1:
            return TokenTree.chain(root)
        logits = yield self._hidden, depth
        width = min(1 if self._shape == "chain" else CANDIDATES, nodes, logits.shape[-1])
        if by_probability(context.sampling):
            best, ids = self._heads.likeliest(logits, width)
        else:
            processor = Processor(context.sampling, context.tokens, logits.device)
            positions = range(len(context.tokens), len(context.tokens) + depth)
            best, ids = log_probabilities(context, processor, logits, positions).topk(width, dim=-1)
        scores, tokens, least = best.tolist(), ids.tolist(), least_log(context)
        if self._shape == "dynamic":
            return _dynamic_tree(root, tokens, scores, nodes, least)
        return _static_tree(root, tokens, scores, self._paths[:nodes], least)


def _static_paths(shape: str, heads: int) -> list[tuple[int, ...]]:
    if shape == "chain":
        return [(0,) * depth for depth in range(1, heads + 1)]
    return [path for path in STATIC_PATHS if len(path) <= heads]


def _static_tree(
    root: int, tokens: list[list[int]], scores: list[list[float]], paths: list[tuple[int, ...]], least: float
) -> TokenTree:
    """The tree of these paths of ranks, without those whose log-probability is below ``least``."""
    tree = TokenTree([root], [-1])
    placed: dict[tuple[int, ...], tuple[int, float]] = {(): (0, 0.0)}
    for path in paths:
        parent = placed.get(path[:-1])
        depth, rank = len(path) - 1, path[-1]
        if parent is None or depth >= len(tokens) or rank >= len(tokens[depth]):
            continue
        score = parent[1] + scores[depth][rank]
        if score >= least and score > -math.inf:
            placed[path] = (len(tree), score)
            tree.tokens.append(tokens[depth][rank])
            tree.parents.append(parent[0])
    return tree


def _dynamic_tree(root: int, tokens: list[list[int]], scores: list[list[float]], nodes: int, least: float) -> TokenTree:
    """The ``nodes`` most probable paths; ``scores`` are the log-probabilities of ``tokens``, per head, best first.

    A path is less probable than its prefix and than the same path with a better last token; these two orders generate
    all paths from best to worst.
    """
    tree = TokenTree([root], [-1])
    # (minus the path's score, minus its prefix's score, prefix's node, depth, rank of its last token)
    frontier = [(-scores[0][0], 0.0, 0, 0, 0)]
    while frontier and len(tree) <= nodes:
        cost, before, parent, depth, rank = heapq.heappop(frontier)
        if -cost < least or cost == math.inf:
            break
        tree.tokens.append(tokens[depth][rank])
        tree.parents.append(parent)
        if rank + 1 < len(tokens[depth]):
            heapq.heappush(frontier, (before - scores[depth][rank + 1], before, parent, depth, rank + 1))
        if depth + 1 < len(tokens):
            heapq.heappush(frontier, (cost - scores[depth + 1][0], cost, len(tree) - 1, depth + 1, 0))
    return tree
