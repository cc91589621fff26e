"""Drafts from the longest match of the context's end, in the context itself or in a corpus.

The suffix automaton and the fallback to a draft head are those of SAM decoding (Hu et al. 2024, arXiv 2411.10666);
drafts are longer for longer matches as in SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec import drafters
from ianvs_specdec.drafters.datastore import Datastore
from ianvs_specdec.drafters.prompt_lookup import repeated
from ianvs_specdec.drafters.rest import LONGEST_MATCH, SHORTEST_MATCH, frequent_prefixes
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree

TOKENS_PER_MATCHED, LONGEST_DRAFT = 4, 16
REFRESHED = 32
"""Maximum number of suffixes per position, the longest first, whose latest occurrence is updated."""


class Suffix(Drafter):
    """Matches the longest suffix of the context that occurred before, in the context or, if given, in ``datastore``.

    Matches of fewer than ``min_match`` tokens (5 with a ``head``, 1 without) are ignored; then the EAGLE head in the
    folder ``head`` drafts, if given. The longer of the two matches wins, the context's if they are equal. A draft has
    at most four times the tokens of its match, and at most 16. In the context it is what followed the latest
    occurrence, continued periodically; in the datastore the tree of the most frequent continuations.
    """

    def __init__(
        self, datastore: str | Path | None = None, head: str | Path | None = None, min_match: int | None = None
    ) -> None:
        self._path = datastore and Path(datastore)
        self._store = Datastore.load(self._path) if self._path else None
        self._head = drafters.create("eagle", {"head": head}) if head else None
        self._min_match = min_match or (5 if head else 1)
        self._target: Target | None = None

    def prepare(self, target: Target) -> Sequence[int]:
        if self._path and self._store and target is not self._target:
            self._store.check_fits(self._path, target)
        self._target = target
        return self._head.prepare(target) if self._head else ()

    def weights(self) -> Sequence[Any]:
        return self._store, *(self._head.weights() if self._head else ())

    def fork(self) -> Suffix:
        another = copy.copy(self)
        another._head = self._head and self._head.fork()
        return another

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._automaton, self._context = SuffixAutomaton(), context
        if self._head:
            self._head.begin(target, context, prefill)

    @property
    def unread_tokens(self) -> int:
        # The head may have more to read, but is not used if a match is long enough.
        return len(self._context.tokens) - self._automaton.size

    def observe(self, observation: Observation) -> None:
        if self._head:
            self._head.observe(observation)

    def end(self) -> None:
        if self._head:
            self._head.end()

    def propose(self, context: Context, budget: int) -> TokenTree:
        tokens, automaton = context.tokens, self._automaton
        for token in tokens[automaton.size :]:
            automaton.extend(token)
        here, there, end = automaton.matched, 0, tokens[-LONGEST_MATCH:]
        if self._store and here < LONGEST_MATCH:
            there = self._store.longest_suffix(end, max(here + 1, self._min_match))
        matched = max(here, there)
        if matched < self._min_match:
            return self._head.propose(context, budget) if self._head else TokenTree.chain(tokens[-1])
        most = min(budget, context.remaining - 1, LONGEST_DRAFT, TOKENS_PER_MATCHED * matched)
        if self._store and there and most > 0:
            rows, weights = self._store.continuations(end, there, min(there, SHORTEST_MATCH), most)
            least = max(context.confidence, 1 / LONGEST_DRAFT)
            return frequent_prefixes(rows, weights, self._store.separator, context, most, least)
        return TokenTree.chain(tokens[-1], repeated(tokens, automaton.followed_at, most))


class SuffixAutomaton:
    """A suffix automaton over a growing sequence (Blumer et al. 1985): finds where its end occurred before, in
    amortised constant time per token.

    ``matched`` is the length of the longest suffix that occurred before, ``followed_at`` the position after its latest
    earlier occurrence. If very many of its suffixes recur, an earlier occurrence may be reported.
    """

    def __init__(self) -> None:
        # A state is a set of substrings with the same end positions. Lists by state: transitions, suffix link, length
        # of the longest substring, position after its latest occurrence.
        self._next: list[dict[int, int]] = [{}]
        self._suffix = [-1]
        self._length = [0]
        self._end = [0]
        self._whole = 0
        self.size = self.matched = self.followed_at = 0

    def extend(self, token: int) -> None:
        steps, suffix, length = self._next, self._suffix, self._length
        self.size += 1
        state, whole = self._whole, self._add({}, 0, self.size, self.size)
        self._whole = whole
        while state >= 0 and token not in steps[state]:
            steps[state][token] = whole
            state = suffix[state]
        if state >= 0:
            following = steps[state][token]
            if length[following] > length[state] + 1:
                following = self._split(following, state, token)
            suffix[whole] = following
        self._refresh(suffix[whole])

    def _add(self, steps: dict[int, int], suffix: int, length: int, end: int) -> int:
        self._next.append(steps)
        self._suffix.append(suffix)
        self._length.append(length)
        self._end.append(end)
        return len(self._length) - 1

    def _split(self, following: int, state: int, token: int) -> int:
        """A new state for the substrings of ``following`` that are ``state``'s followed by ``token``."""
        steps = self._next
        shorter = self._add(
            dict(steps[following]), self._suffix[following], self._length[state] + 1, self._end[following]
        )
        while state >= 0 and steps[state].get(token) == following:
            steps[state][token] = shorter
            state = self._suffix[state]
        self._suffix[following] = shorter
        return shorter

    def _refresh(self, state: int) -> None:
        """Report the match, and update the latest occurrence of all suffixes, the longest of which is in ``state``."""
        self.matched, self.followed_at = self._length[state], self._end[state]
        for _ in range(REFRESHED):
            if state <= 0:
                return
            self._end[state] = self.size
            state = self._suffix[state]
