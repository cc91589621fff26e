"""Token recycling: tokens that the target ranked high after a token are likely after it again (Luo et al. 2024, arXiv
2408.08696).

The published method keeps one row of successors per token and a fixed tree. Here a row may also belong to the last
``order`` tokens together, where the longest known context counts, and the tree is the best one for the hit rates of
each rank in this run.
"""

from __future__ import annotations

import heapq
import itertools
import math

from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree

CAPACITY = 1 << 18
"""Maximum number of contexts; beyond, the oldest quarter is dropped."""

Key = tuple[int, ...]


class Recycling(Drafter):
    """Trees of at most ``nodes`` tokens, from the ``successors`` best tokens after each of the last 1 to ``order``
    tokens.

    The rows are kept across requests: they describe the target, and drafts cannot change an output.
    """

    def __init__(self, nodes: int = 16, successors: int = 8, order: int = 2) -> None:
        self._nodes, self._successors, self._order = nodes, successors, order
        self._rows: dict[Key, list[int]] = {}
        self._rates = [_Rates(successors) for _ in range(order + 1)]

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        tokens, end = context.tokens, context.prompt_tokens
        for position in range(1, end):
            follower = tokens[position]
            for key in self._keys(tuple(tokens[max(0, position - self._order) : position])):
                others = [token for token in self._rows.get(key, ()) if token != follower]
                self._rows[key] = [follower, *others[: self._successors - 1]]
        best = prefill.logits[-1].topk(min(self._successors, prefill.logits.shape[-1])).indices.tolist()
        self._put(tuple(tokens[max(0, end - self._order) : end]), best)
        self._tail = tuple(tokens[-self._order :])

    def propose(self, context: Context, budget: int) -> TokenTree:
        """The most probable paths through the known rows; the probability of a path is the product of the hit rates of
        its ranks."""
        tree = TokenTree([context.tokens[-1]], [-1])
        nodes, deepest = min(budget, self._nodes), context.remaining - 1
        costs = [rates.costs() for rates in self._rates]
        most = -math.log(context.confidence) if context.confidence > 0 else math.inf
        tails = [self._tail]
        # (cost of the path, cost of its prefix, prefix's node, rank of its last token, order, row, depth)
        frontier: list[tuple[float, float, int, int, int, list[int], int]] = []

        def open_row(cost: float, node: int, depth: int) -> None:
            order, row = self._find(tails[node])
            if row and depth <= deepest:
                heapq.heappush(frontier, (cost + costs[order][0], cost, node, 0, order, row, depth))

        open_row(0.0, 0, 1)
        while frontier and len(tree.tokens) <= nodes:
            cost, before, parent, rank, order, row, depth = heapq.heappop(frontier)
            if cost > most:
                break
            tree.tokens.append(row[rank])
            tree.parents.append(parent)
            tails.append((*tails[parent], row[rank])[-self._order :])
            if rank + 1 < len(row):
                heapq.heappush(frontier, (before + costs[order][rank + 1], before, parent, rank + 1, order, row, depth))
            open_row(cost, len(tails) - 1, depth + 1)
        return tree

    def observe(self, observation: Observation) -> None:
        tree, path, logits = observation.tree, observation.path, observation.output.logits
        tails = [self._tail]
        for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
            tails.append((*tails[parent], token)[-self._order :])
        for node, token in zip(path, [*(tree.tokens[node] for node in path[1:]), observation.token], strict=True):
            order, row = self._find(tails[node])
            if row:
                self._rates[order].learn(row.index(token) if token in row else None)
        rows = logits.topk(min(self._successors, logits.shape[-1]), dim=-1).indices.tolist()
        # The accepted path is last, so that its rows replace those of rejected nodes.
        for node in itertools.chain(range(len(rows)), path):
            self._put(tails[node], rows[node])
        self._tail = (*tails[path[-1]], observation.token)[-self._order :]
        if len(self._rows) > CAPACITY:
            for key in list(itertools.islice(self._rows, CAPACITY // 4)):
                del self._rows[key]

    def _keys(self, tail: Key) -> list[Key]:
        return [tail[-order:] for order in range(1, len(tail) + 1)]

    def _put(self, tail: Key, row: list[int]) -> None:
        for key in self._keys(tail):
            self._rows[key] = row

    def _find(self, tail: Key) -> tuple[int, list[int]]:
        """The length of the longest known context at the end of ``tail`` and its row; an empty row if none."""
        for order in range(len(tail), 0, -1):
            row = self._rows.get(tail[-order:])
            if row:
                return order, row
        return 0, []


class _Rates:
    """Hit rates of the guesses by rank, weighted towards the latest few hundred decisions."""

    MEMORY = 256
    LEAST = 1e-3

    def __init__(self, ranks: int) -> None:
        # Prior: every rank is half as good as the one before.
        self._hits = [2.0 * 0.5 ** (rank + 1) for rank in range(ranks)]
        self._decisions = 3.0

    def learn(self, rank: int | None) -> None:
        self._decisions += 1
        if rank is not None:
            self._hits[rank] += 1
        if self._decisions > self.MEMORY:
            self._decisions /= 2
            self._hits = [hits / 2 for hits in self._hits]

    def costs(self) -> list[float]:
        """Negative log-probability by rank."""
        return [-math.log(max(hits, self.LEAST) / self._decisions) for hits in self._hits]
