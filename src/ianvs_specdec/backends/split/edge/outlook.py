"""What may follow the confirmed output: the likeliest outcomes of a verification, each with a draft behind it."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Sequence
from itertools import islice
from math import prod

from ianvs_specdec.engine.contracts import Lines

WIDEST = 16
"""Lines that grow in the same step at most: a draft of four tokens has five places with some likely tokens each."""
FREE = 0.25
"""By which share a step of several lines may take longer than that of one: the likeliest line, which is needed most,
grows with them."""
LEAST_LIKELY = 0.005
"""What is reached with less probability is not drafted: it would almost always be in vain."""
SMOOTHING = 0.2
"""The share of the latest step in what a further line is taken to cost."""
FORGETTING = 1 / 256
"""The share of what a further line is taken to cost that is forgotten with each step of one line: so it is tried again,
now and then."""
PRIOR = 16.0
"""Mistakes that the drafter is taken to have expected, and to have made, before any were seen."""
MEMORY = 256.0
"""Mistakes, expected or made, after which what was seen counts half."""


class Chances:
    """What a drafter's probabilities are worth, and what lines beside the likeliest cost. One serves all answers of an
    edge.

    Of the tokens that it held for the likeliest, ``wrong`` were, and by its own probabilities ``doubted`` would have
    been. So much more often than it says, another token comes.
    """

    def __init__(self) -> None:
        self._wrong = self._doubted = PRIOR
        self._one: float | None = None
        self._further = 0.0
        """Seconds of a step of one line, and of each further one."""

    def judged(self, probability: float, right: bool) -> None:
        """The likeliest token, of this probability, was right or not."""
        self._doubted += 1 - probability
        self._wrong += not right
        if max(self._wrong, self._doubted) > MEMORY:
            self._wrong, self._doubted = self._wrong / 2, self._doubted / 2

    def of(self, probabilities: Sequence[float]) -> list[float]:
        """These probabilities of the same node's tokens, the likeliest first, as what was seen has them."""
        doubt = 1 - probabilities[0]
        more = min(self._wrong / self._doubted, 1 / doubt) if doubt > 0 else 1.0
        return [1 - doubt * more, *(more * probability for probability in probabilities[1:])]

    def took(self, lines: int, seconds: float) -> None:
        """A step of so many lines took so long."""
        if lines == 1:
            self._one = seconds if self._one is None else (1 - SMOOTHING) * self._one + SMOOTHING * seconds
            self._further *= 1 - FORGETTING
        elif self._one is not None:
            further = max(0.0, seconds - self._one) / (lines - 1)
            self._further += SMOOTHING * (further - self._further)

    @property
    def width(self) -> int:
        """How many lines may grow in a step."""
        if self._one is None:
            return 1
        free = FREE * self._one
        return WIDEST if free >= (WIDEST - 1) * self._further else 1 + int(free / self._further)


class Outlook:
    """A tree of what may follow. Node ``root`` is the last confirmed token."""

    def __init__(self, lines: Lines, chances: Chances) -> None:
        self._lines, self._chances = lines, chances
        self.root = 0
        # By node. A drafter adds many of them between two verdicts: lists of numbers take the least time.
        self.tokens = [-1]
        self._probabilities, self._likely = [1.0], [1.0]
        """That it follows its parent: as the drafter says, and as what was seen has it."""
        self._children: list[range | None] = [None]
        """The likeliest first; None where nothing was drafted behind it."""

    def likeliest(self, node: int | None = None) -> Iterator[int]:
        """The nodes of the likeliest line behind ``node`` (the root)."""
        node = self.root if node is None else node
        while children := self._children[node]:
            node = children[0]
            yield node

    def behind(self, node: int, tokens: Sequence[int]) -> list[int]:
        """The nodes that lead from ``node`` over ``tokens``, as far as there are such."""
        found: list[int] = []
        for token in tokens:
            after = next((child for child in self._children[node] or () if self.tokens[child] == token), None)
            if after is None:
                break
            found.append(node := after)
        return found

    def reached(self, path: Sequence[int]) -> float:
        """The probability that all of a path is right behind what it hangs off, as the drafter says: what was seen is
        of a few hundred tokens, and the product of five probabilities would show their luck."""
        return prod(self._probabilities[node] for node in path)

    def advance(self, tokens: Sequence[int]) -> int | None:
        """``tokens`` were confirmed. Returns the node of the last one, which is the root from now on; None where it is
        not in the tree, which is of no more use then."""
        node = self.root
        for token in tokens:
            if children := self._children[node]:
                self._chances.judged(self._probabilities[children[0]], self.tokens[children[0]] == token)
            path = self.behind(node, [token])
            if not path:
                return None
            node = path[0]
        self.root = node
        return node

    def drafted(self, node: int) -> bool:
        """Whether there is a draft behind it, so that it is more than one of the tokens that may follow."""
        return self._children[node] is not None

    def grow(self, nodes: Sequence[int]) -> int:
        """Draft the next token behind each of ``nodes``. Returns for how many there was one."""
        for node, found in zip(nodes, self._lines.grow(nodes), strict=True):
            self._children[node] = range(len(self.tokens), len(self.tokens) + len(found))
            if found:
                probabilities = [probability for _, probability in found]
                self.tokens += [token for token, _ in found]
                self._probabilities += probabilities
                self._likely += self._chances.of(probabilities)
                self._children += [None] * len(found)
        return sum(bool(self._children[node]) for node in nodes)

    def tip(self, node: int, length: int, ends: Container[int]) -> int | None:
        """Where the likeliest line behind ``node``, of at most ``length`` tokens, goes on; None where it does not."""
        line = [node, *islice(self.likeliest(node), length)]
        return line[-1] if len(line) <= length and self._open(line[-1], ends) else None

    def tips(self, sent: Sequence[int], length: int, ends: Container[int], most: int) -> list[int]:
        """The ``most`` likeliest nodes that a token is to be drafted behind, so that each outcome has a draft of
        ``length``. Outcomes are the tokens that may follow each of ``sent``, the root and the nodes that are being
        verified; with nothing sent, the root."""
        on_their_way = set(sent)
        # By probability; of the same, the older one first.
        waiting = [(-1.0, self.root, -1 if sent else 0)]
        found: list[int] = []
        while waiting and len(found) < most:
            likely, node, drafted = heapq.heappop(waiting)
            if drafted < length and self._open(node, ends):
                found.append(node)
            for child in self._children[node] or ():
                chance = likely * self._likely[child]
                if child in on_their_way:
                    heapq.heappush(waiting, (chance, child, -1))
                elif chance <= -LEAST_LIKELY:
                    heapq.heappush(waiting, (chance, child, drafted + 1))
        return found

    def _open(self, node: int, ends: Container[int]) -> bool:
        return self._children[node] is None and self.tokens[node] not in ends
