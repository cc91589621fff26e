"""REST: retrieve continuations of the context's end from a datastore (He et al. 2024, arXiv 2311.08252)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from ianvs_specdec.drafters.datastore import Datastore
from ianvs_specdec.engine import Context, Drafter, Target, TokenTree

LONGEST_MATCH, SHORTEST_MATCH = 16, 2
CONTINUATION = 10

TINY = numpy.finfo(numpy.float64).tiny


class Rest(Drafter):
    """Drafts a tree of the most frequent continuations of the context's end in ``datastore``.

    The end is the longest one that occurs, of 16 down to 2 tokens. If it is rare, occurrences of shorter ends are
    added, each token less halving their weight. A draft has at most ``nodes`` prefixes of at most 10 tokens, each with
    at least a share of 1 / ``nodes`` of all continuations. Of equally frequent ones shorter ones come first, then by
    token ids.
    """

    def __init__(self, datastore: str | Path, nodes: int = 32) -> None:
        self._path = Path(datastore)
        self._store = Datastore.load(self._path)
        self._nodes = nodes
        self._target: Target | None = None

    def prepare(self, target: Target) -> Sequence[int]:
        if target is not self._target:
            self._store.check_fits(self._path, target)
            self._target = target
        return ()

    def weights(self) -> Sequence[Any]:
        return (self._store,)

    def propose(self, context: Context, budget: int) -> TokenTree:
        depth = min(CONTINUATION, context.remaining - 1)
        end = context.tokens[-LONGEST_MATCH:]
        matched = self._store.longest_suffix(end, SHORTEST_MATCH) if depth > 0 else 0
        if not matched:
            return TokenTree.chain(end[-1])
        rows, weights = self._store.continuations(end, matched, SHORTEST_MATCH, depth)
        least = max(context.confidence, 1 / self._nodes)
        return frequent_prefixes(rows, weights, self._store.separator, context, min(budget, self._nodes), least)


def frequent_prefixes(
    rows: NDArray[numpy.int64],
    weights: NDArray[numpy.float64],
    separator: int,
    context: Context,
    nodes: int,
    least: float,
) -> TokenTree:
    """The tree of the ``nodes`` most frequent prefixes of ``rows [matches, length]``, which are in lexicographic order
    and end at a ``separator``. ``weights [matches]`` are the counts of the rows. Prefixes below the share ``least`` of
    all rows are omitted."""
    columns = numpy.ascontiguousarray(rows.T)
    length, matches = columns.shape
    # Rows with a common prefix are adjacent: a prefix begins, at its depth, in the first row that has it.
    begins = numpy.ones(columns.shape, bool)
    numpy.logical_or.accumulate(columns[:, 1:] != columns[:, :-1], axis=0, out=begins[:, 1:])
    prefix = begins.ravel().cumsum().reshape(length, matches) - 1
    goes_on = numpy.logical_and.accumulate(columns != separator, axis=0)
    shares = numpy.bincount(prefix.ravel(), (goes_on * weights).ravel()).astype(numpy.float64, copy=False)
    place = numpy.flatnonzero(begins)
    above = numpy.concatenate([numpy.full(prefix[0, -1] + 1, -1), prefix.ravel()[place[prefix[0, -1] + 1 :] - matches]])
    tokens = columns.ravel()[place]
    least *= weights.sum()
    if context.noise is not None:
        shares = _drawn(context, shares, above, tokens, place // matches)
    # A prefix is never less frequent than a longer one and comes before it.
    kept = numpy.flatnonzero(shares >= least)
    kept = kept[numpy.argsort(-shares[kept], kind="stable")[:nodes]]
    tree = TokenTree([context.tokens[-1], *tokens[kept].tolist()], [-1])
    node = {number: i for i, number in enumerate(kept.tolist(), start=1)} | {-1: 0}
    tree.parents += [node[number] for number in above[kept].tolist()]
    return tree


def _drawn(
    context: Context,
    shares: NDArray[numpy.float64],
    above: NDArray[numpy.int64],
    tokens: NDArray[numpy.int64],
    depths: NDArray[numpy.int64],
) -> NDArray[numpy.float64]:
    """The share of each prefix redistributed among its next tokens by the shared noise: the token that would be drawn
    from them gets the most."""
    assert context.noise is not None
    drawn = numpy.zeros_like(shares)
    bounds = numpy.searchsorted(depths, range(depths[-1] + 2)).tolist()
    for depth, (begin, end) in enumerate(pairwise(bounds)):
        noise = context.noise.at(len(context.tokens) + depth).cpu().numpy()
        # The separator has neither noise nor a share.
        gumbel = noise[numpy.minimum(tokens[begin:end], len(noise) - 1)]
        parts, parents = shares[begin:end] * numpy.exp(gumbel), above[begin:end]
        # The root, -1, is counted as 0.
        sums = numpy.bincount(parents + 1, parts)
        drawn[begin:end] = parts / numpy.maximum(sums[parents + 1], TINY) * (drawn[parents] if depth else 1.0)
    return drawn * shares[: bounds[1]].sum()
