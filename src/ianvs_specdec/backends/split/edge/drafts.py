"""Drafts of an edge: for the confirmed tokens and, ahead of verdicts, for their likeliest continuations."""

from __future__ import annotations

import heapq
import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from ianvs_specdec.backends.split.edge.controller import MIN_SEND_PROBABILITY
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Context, Drafter, Observation, Output, TokenTree
from ianvs_specdec.engine.contracts import Continuations
from ianvs_specdec.engine.sampling import Noise

BATCH = 4
"""Nodes that a draft model expands in one step, which takes about as long as for one."""
MIN_PROBABILITY = 0.005
"""Continuations of less probability are not drafted for."""


class RemoteTarget:
    """The part of ``contracts.Target`` that drafters can use without the model."""

    kind = "verifier"
    device = torch.device("cpu")

    def __init__(self, vocabulary: int, window: int | None, dtype: torch.dtype, tokenizer: Path | None) -> None:
        self.vocabulary, self.window, self.dtype = vocabulary, window, dtype
        self.model = SimpleNamespace(name_or_path=str(tokenizer or ""))

    @property
    def embedding(self) -> Tensor:
        """Shape [vocabulary, 0]."""
        return torch.empty((self.vocabulary, 0))

    def placeholder(self) -> Output:
        """An output without data, logits of shape [1, vocabulary]."""
        return Output(torch.empty((1, self.vocabulary), device="meta"))


@dataclass
class SentDraft:
    """A draft in flight. ``ahead``: sent before the verdict that it builds on."""

    tree: TokenTree
    ahead: bool
    at: float = field(default_factory=time.perf_counter)


class SpeculationTree:
    """A tree of drafted continuations. ``root`` is the node of the last confirmed token."""

    def __init__(self, lines: Continuations) -> None:
        self._lines = lines
        self.root = 0
        # Lists per node are the fastest: many nodes are added between two verdicts.
        self.tokens = [-1]
        self._probabilities = [1.0]
        """Given the parent."""
        self._children: list[range | None] = [None]
        """The likeliest first; None for a node that is not expanded."""

    @property
    def drafted(self) -> bool:
        """Whether the root is expanded."""
        return self._children[self.root] is not None

    def likeliest(self, length: int) -> list[int]:
        """At most ``length`` nodes of the likeliest continuation of the root."""
        return list(islice(self._continuation(), length))

    def _continuation(self) -> Iterator[int]:
        node = self.root
        while children := self._children[node]:
            node = children[0]
            yield node

    def probability(self, path: Sequence[int]) -> float:
        return prod(self._probabilities[node] for node in path)

    def advance(self, tokens: Sequence[int]) -> bool:
        """Move the root along confirmed ``tokens``. False if they are not in the tree, which is useless then."""
        node = self.root
        for token in tokens:
            child = next((child for child in self._children[node] or () if self.tokens[child] == token), None)
            if child is None:
                return False
            node = child
        self.root = node
        return True

    def expand(self, nodes: Sequence[int]) -> bool:
        """Draft the next tokens of ``nodes``. Returns whether there are any."""
        for node, found in zip(nodes, self._lines.grow(nodes), strict=True):
            self._children[node] = range(len(self.tokens), len(self.tokens) + len(found))
            self.tokens += [token for token, _ in found]
            self._probabilities += [probability for _, probability in found]
            self._children += [None] * len(found)
        return any(self._children[node] for node in nodes)

    def leaf(self, length: int, ends: Container[int]) -> int | None:
        """The node to expand for a likeliest continuation of ``length`` tokens; None if there is none."""
        line = [self.root, *self.likeliest(length)]
        return line[-1] if len(line) <= length and self._is_open(line[-1], ends) else None

    def leaves(self, in_flight: Sequence[int], length: int, ends: Container[int]) -> list[int]:
        """The ``BATCH`` likeliest nodes to expand, so that each outcome has a draft of ``length`` tokens.

        Outcomes are the tokens after the root and after ``in_flight``, the nodes that are being verified.
        """
        verified = {self.root, *in_flight}
        # By probability, then by age: (-probability, node, draft tokens before it).
        waiting = [(-1.0, self.root, -1)]
        found: list[int] = []
        while waiting and len(found) < BATCH:
            negative, node, drafted = heapq.heappop(waiting)
            if drafted < length and self._is_open(node, ends):
                found.append(node)
            for child in self._children[node] or ():
                probability = negative * self._probabilities[child]
                if child in verified:
                    heapq.heappush(waiting, (probability, child, -1))
                elif probability <= -MIN_PROBABILITY:
                    heapq.heappush(waiting, (probability, child, drafted + 1))
        return found

    def _is_open(self, node: int, ends: Container[int]) -> bool:
        return self._children[node] is None and self.tokens[node] not in ends


class Drafts:
    """Drafts for one answer. ``ahead``: verdicts that arrived after drafting ahead; ``hits``: those with a draft."""

    def __init__(
        self,
        drafter: Drafter,
        target: RemoteTarget,
        prompt: Sequence[int],
        sampling: Sampling,
        prediction: Sequence[int],
    ) -> None:
        generator = torch.Generator().manual_seed(sampling.seed)
        noise = None if sampling.greedy else Noise(sampling.seed, target.vocabulary, target.device)
        self.context = Context(
            list(prompt), len(prompt), sampling.max_tokens, sampling, generator, noise, prediction=prediction
        )
        self._drafter, self._target = drafter, target
        self._begun = False
        self._tree: SpeculationTree | None = None
        self.sent: deque[SentDraft] = deque()
        self._drafted_ahead = self._ready = False
        """Whether anything was drafted ahead, and whether the last verdict was among what it was drafted for."""
        self._drafted, self._seconds = 0, 0.0
        self.ahead = self.hits = 0
        self.exposed_seconds = 0.0
        """Seconds of drafting with no draft in flight."""

    def confirm(self, tokens: Sequence[int]) -> None:
        """Append confirmed tokens."""
        self._ready = False
        if self._tree is not None:
            if self._tree.advance(tokens):
                self._ready = self._drafted_ahead and self._tree.drafted
            else:
                self._tree = None
        self.context.tokens += tokens
        self.context.remaining -= len(tokens)
        if not self._begun:
            self._drafter.begin(self._target, self.context, self._target.placeholder())  # type: ignore[arg-type]
            self._begun = True

    def apply_verdict(self, node: int, token: int) -> tuple[SentDraft, list[int]]:
        """The verifier accepted the oldest draft up to ``node`` and added ``token``. Returns draft and new tokens."""
        if not self.sent or node >= len(self.sent[0].tree):
            raise AnswerError("the verifier's verdict is on no draft: use the same version on both sides")
        sent = self.sent.popleft()
        path = sent.tree.path_to(node)
        tokens = [*(sent.tree.tokens[node] for node in path[1:]), token]
        if len(tokens) < len(sent.tree) or (self.sent and self.sent[0].tree.tokens[0] != token):
            self.sent.clear()
        self.confirm(tokens)
        self.ahead += self._drafted_ahead
        self.hits += self._ready
        self._drafter.observe(Observation(sent.tree, self._target.placeholder(), list(path), token))
        return sent, tokens

    def cost(self) -> tuple[int, float]:
        """Draft tokens since the last call, and the seconds that they took."""
        cost, self._drafted, self._seconds = (self._drafted, self._seconds), 0, 0.0
        return cost

    def next(self, length: int, ends: Container[int]) -> SentDraft | None:
        """The next draft with none in flight, of 0 to ``length`` tokens; None if the output is complete."""
        context, before = self.context, self._seconds
        if context.remaining < 1 or context.tokens[-1] in ends:
            return None
        # The verifier adds a token to the draft.
        length = min(length, context.remaining - 1)
        if self._drafter.supports_continuations:
            tree = TokenTree.chain(context.tokens[-1], self._line(length, ends))
        else:
            with self._timed():
                tree = self._drafter.propose(context, length) if length > 0 else TokenTree.chain(context.tokens[-1])
            self._drafted += len(tree) - 1
        self.exposed_seconds += self._seconds - before
        self._drafted_ahead = False
        self.sent.append(SentDraft(tree, ahead=False))
        return self.sent[-1]

    def next_ahead(self, length: int) -> SentDraft | None:
        """The draft of ``length`` tokens after those in flight, if it is complete and probably needed."""
        in_flight = self._in_flight
        length = min(length, self.context.remaining - in_flight - 1)
        if self._tree is None or not self.sent or length < 1:
            return None
        line = self._tree.likeliest(in_flight + length)
        nodes = line[in_flight - 1 :]
        if len(nodes) <= length or self._tree.probability(line[:in_flight]) < MIN_SEND_PROBABILITY:
            return None
        guess, *tokens = [self._tree.tokens[node] for node in nodes]
        self.sent.append(SentDraft(TokenTree.chain(guess, tokens), ahead=True))
        return self.sent[-1]

    def grow(self, length: int, ends: Container[int]) -> bool:
        """Draft ahead by one step, for drafts of ``length`` tokens. Returns whether there was anything to draft."""
        if not self._drafter.supports_continuations or not self.sent:
            return False
        tree = self._expandable()
        leaves = tree.leaves(tree.likeliest(self._in_flight - 1), length, ends)
        # The draft that is sent next comes first, whatever its probability.
        first = tree.leaf(self._in_flight + length, ends)
        if first is not None and first not in leaves:
            leaves = [first, *leaves[:-1]]
        grown = bool(leaves) and self._expand(tree, leaves)
        self._drafted_ahead = self._drafted_ahead or grown
        return grown

    def close(self) -> None:
        self._drafter.end()

    @property
    def _in_flight(self) -> int:
        """Tokens of the output if all drafts in flight are accepted."""
        return sum(len(sent.tree) for sent in self.sent)

    def _line(self, length: int, ends: Container[int]) -> list[int]:
        """The likeliest continuation, of at most ``length`` tokens."""
        tree = self._expandable()
        while (leaf := tree.leaf(length, ends)) is not None and self._expand(tree, [leaf]):
            pass
        return [tree.tokens[node] for node in tree.likeliest(length)]

    def _expandable(self) -> SpeculationTree:
        if self._tree is None:
            with self._timed():
                self._tree = SpeculationTree(self._drafter.continuations(self.context))
        return self._tree

    def _expand(self, tree: SpeculationTree, nodes: Sequence[int]) -> bool:
        with self._timed():
            found = tree.expand(nodes)
        self._drafted += found
        return found

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        with torch.inference_mode():
            yield
        self._seconds += time.perf_counter() - began
