"""What may follow the confirmed output: the likeliest outcomes of a verification, each with a draft behind it."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from ianvs_specdec.decoding.contracts import Lines

WIDEST = 16
"""Lines that grow in the same step at most: a draft of four tokens has five places with some likely tokens each."""
FREE = 0.25
"""By which share a step of several lines may take longer than that of one: the likeliest line, which is needed most,
grows with them."""
LEAST_LIKELY = 0.005
"""What is reached with less probability is not drafted: it would almost always be in vain."""
SMOOTHING = 0.2
"""The share of the latest step in what a further line is taken to cost."""
PRIOR = 16.0
"""Mistakes that the drafter is taken to have expected, and to have made, before any were seen: luck is not to decide
what is sent."""
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
        elif self._one is not None:
            further = max(0.0, seconds - self._one) / (lines - 1)
            self._further += SMOOTHING * (further - self._further)

    @property
    def width(self) -> int:
        """How many lines may grow in a step. At least two: what a further one costs is to be known."""
        if self._one is None:
            return 1
        free = FREE * self._one
        return WIDEST if free >= (WIDEST - 1) * self._further else max(2, 1 + int(free / self._further))


@dataclass
class _Node:
    token: int
    parent: int
    probability: float
    """As the drafter says."""
    chance: float
    """That it follows its parent, as what was seen has it."""
    children: list[int] | None = None
    """The likeliest first; None where nothing was drafted behind it."""


@dataclass
class Outlook:
    """A tree of what may follow. Node ``root`` is the last confirmed token."""

    lines: Lines
    chances: Chances
    root: int = 0
    nodes: list[_Node] = field(default_factory=lambda: [_Node(-1, -1, 1.0, 1.0)])

    def likeliest(self, node: int | None = None) -> Iterator[int]:
        """The nodes of the likeliest line behind ``node`` (the root)."""
        node = self.root if node is None else node
        while children := self.nodes[node].children:
            node = children[0]
            yield node

    def behind(self, node: int, tokens: Sequence[int]) -> list[int]:
        """The nodes that lead from ``node`` over ``tokens``, as far as there are such."""
        found: list[int] = []
        for token in tokens:
            children = self.nodes[node].children or []
            after = next((child for child in children if self.nodes[child].token == token), None)
            if after is None:
                break
            found.append(node := after)
        return found

    def reached(self, path: Sequence[int]) -> float:
        """The probability that all of a path is right behind what it hangs off."""
        chance = 1.0
        for node in path:
            chance *= self.nodes[node].chance
        return chance

    def advance(self, tokens: Sequence[int]) -> int | None:
        """``tokens`` were confirmed. Returns the node of the last one, which is the root from now on; None where it is
        not in the tree, which is of no more use then."""
        node = self.root
        for token in tokens:
            children = self.nodes[node].children
            if children:
                first = self.nodes[children[0]]
                self.chances.judged(first.probability, first.token == token)
            path = self.behind(node, [token])
            if not path:
                return None
            node = path[0]
        self.root = node
        return node

    def drafted(self, node: int) -> bool:
        """Whether it is more than one of the tokens that may follow: there is a draft behind it, or it is the likeliest
        one."""
        held = self.nodes[node]
        return held.children is not None or (self.nodes[held.parent].children or [])[:1] == [node]

    def grow(self, nodes: Sequence[int]) -> int:
        """Draft the next token behind each of ``nodes``. Returns for how many there was one."""
        for node, found in zip(nodes, self.lines.grow(nodes), strict=True):
            first = len(self.nodes)
            self.nodes[node].children = list(range(first, first + len(found)))
            if found:
                probabilities = [probability for _, probability in found]
                rated = zip(found, self.chances.of(probabilities), strict=True)
                self.nodes += [_Node(token, node, probability, chance) for (token, probability), chance in rated]
        return sum(bool(self.nodes[node].children) for node in nodes)

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
            children = self.nodes[node].children
            if children is None and drafted < length and self.nodes[node].token not in ends:
                found.append(node)
            for child in children or ():
                chance = likely * self.nodes[child].chance
                if chance <= -LEAST_LIKELY or child in on_their_way:
                    heapq.heappush(waiting, (chance, child, -1 if child in on_their_way else drafted + 1))
        return found
