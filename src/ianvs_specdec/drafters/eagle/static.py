"""EAGLE-1's static tree (Li et al. 2024, arXiv 2401.15077): the same shape at every step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from ianvs_specdec.drafters.eagle import steps
from ianvs_specdec.drafters.eagle.trees import Growth
from ianvs_specdec.engine import TokenTree

Paths = tuple[tuple[int, ...], ...]

_PUBLISHED = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
PATHS: Paths = tuple(tuple(int(rank) for rank in path) for path in _PUBLISHED.split())
"""The published tree, level by level; a path says which of its parent's best children each node is."""

_RANK_RATES = (0.6, 0.2, 0.1, 0.05)


@cache
def limited(nodes: int, depth: int | None = None, top_k: int | None = None) -> Paths:
    """The published tree down to ``depth`` and to the ``top_k`` best children, and of that the ``nodes`` nodes that are
    most often right, going by how often a guess of each rank is."""
    allowed = [path for path in PATHS if (depth is None or len(path) <= depth) and (top_k is None or max(path) < top_k)]
    ranked = sorted(allowed, key=lambda path: -math.prod(_RANK_RATES[rank] for rank in path))
    return tuple(sorted(ranked[:nodes], key=lambda path: (len(path), path)))


@dataclass(frozen=True)
class _Level:
    """A level of the tree. ``rows`` are the nodes of the level before that were drafted on.

    ``pick`` says where a node is among the candidates ``[rows, ranks]``, flat; ``above`` which row it hangs off.
    ``grown`` are the nodes that are drafted on in their turn, ``carried`` the rows above those, and ``mask`` what they
    see of all that was drafted on so far.
    """

    rows: list[int]
    ranks: int
    pick: Tensor
    above: Tensor
    grown: Tensor
    carried: Tensor
    mask: Tensor


@cache
def _levels(paths: Paths, device: torch.device) -> tuple[_Level, ...]:
    nodes = {path: node for node, path in enumerate(((), *paths))}
    inner = {path[:-1] for path in paths}
    before: list[tuple[int, ...]] = [()]
    drafted: list[tuple[int, ...]] = []
    levels = []

    def index(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    for depth in range(1, len(paths[-1]) + 1):
        here = [path for path in paths if len(path) == depth]
        grown = [path for path in here if path in inner]
        ranks = max(path[-1] for path in here) + 1
        above = [before.index(path[:-1]) for path in here]
        drafted += grown
        hidden = torch.tensor([[path[: len(other)] != other for other in drafted] for path in grown], dtype=torch.bool)
        mask = torch.zeros(len(grown), len(drafted)).masked_fill_(hidden.view(len(grown), len(drafted)), -torch.inf)
        levels.append(
            _Level(
                rows=[nodes[path] for path in before],
                ranks=ranks,
                pick=index([row * ranks + path[-1] for row, path in zip(above, here, strict=True)]),
                above=index(above),
                grown=index([here.index(path) for path in grown]),
                carried=index([before.index(path[:-1]) for path in grown]),
                mask=mask.to(device),
            )
        )
        before = grown
    return tuple(levels)


def static(growth: Growth, paths: Paths) -> steps.Growing:
    """The tree of these ``paths`` (level by level, not empty), less what is too improbable."""
    head, guesses = growth.head, growth.guesses
    tokens: list[Tensor] = []
    likelihoods: list[Tensor] = []
    drawn_from: dict[int, Tensor] = {}
    likelihood = torch.zeros(1, dtype=head.work, device=head.device)
    levels = _levels(paths, head.device)
    logits = yield growth.sequence, growth.pairs
    for depth, level in enumerate(levels, start=1):
        scores, known = guesses.scores(logits, depth)
        chosen = scores.topk(level.ranks, dim=-1).indices.flatten()[level.pick]
        tokens.append(guesses.tokens(chosen))
        if guesses.draws:
            drawn_from |= zip(level.rows, known.exp(), strict=True)
        if growth.weighs:
            likelihood = likelihood[level.above] + known[level.above, chosen]
            likelihoods.append(likelihood)
            if float(likelihood.max()) < growth.least:
                break
            likelihood = likelihood[level.grown]
        if depth == len(levels):
            break
        drafted_on = tokens[-1][level.grown]
        logits = yield growth.sequence, steps.Level(drafted_on, depth, level.carried, level.mask)
    drafted = torch.cat(tokens).tolist()
    weights = torch.cat(likelihoods).tolist() if likelihoods else None
    return _tree(growth, drafted, paths, weights, drawn_from)


def _tree(
    growth: Growth, tokens: list[int], paths: Paths, likelihoods: list[float] | None, drawn_from: dict[int, Tensor]
) -> TokenTree:
    """The tree without nodes below the least likelihood. Draws have to be proposed, whatever they are, or the proposals
    are no draws from q any more; those are left out that q makes impossible, and those that hang off an unlikely
    node."""
    node_of: dict[tuple[int, ...], int] = {(): 0}
    parents, kept = [-1], [growth.root]
    old_of = [0]
    weight_of: dict[tuple[int, ...], float] = {(): 0.0}
    for old, (path, token) in enumerate(zip(paths, tokens, strict=False), start=1):
        weight = weight_of[path] = likelihoods[old - 1] if likelihoods else 0.0
        decides = weight_of[path[:-1]] if growth.guesses.draws else weight
        if decides >= growth.least and weight > -math.inf:
            node_of[path] = len(kept)
            parents.append(node_of[path[:-1]])
            kept.append(token)
            old_of.append(old)
    probabilities = {new: drawn_from[old] for new, old in enumerate(old_of) if old in drawn_from}
    return TokenTree(kept, parents, probabilities or None)
