"""A suffix automaton over a growing sequence (Blumer et al. 1985) that tells where its present end occurred before."""

from __future__ import annotations

REFRESHED = 32
"""How many of the suffixes of one position, the longest first, are told that they have occurred there."""


class SuffixAutomaton:
    """All substrings of the tokens given to ``extend``, in amortised constant time a token.

    ``matched`` is the length of the longest suffix of the sequence that occurred before, and ``followed_at`` the
    position behind its latest earlier occurrence: the token there followed it. Of a suffix with very many suffixes that
    recur, an occurrence before the latest may be reported.
    """

    def __init__(self) -> None:
        # A state is a set of substrings that occur at the same places. Of each: its transitions, its longest proper
        # suffix state, the length of its longest substring and the position behind its latest occurrence.
        self._next: list[dict[int, int]] = [{}]
        self._suffix = [-1]
        self._length = [0]
        self._end = [0]
        self._whole = 0
        self.size = self.matched = self.followed_at = 0

    def extend(self, token: int) -> None:
        """Append one token."""
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
        """A state of its own for those substrings of ``following`` that are ``state``'s with ``token`` behind them."""
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
        """Report the match, and note that all suffixes, the longest of which is in ``state``, occur here."""
        self.matched, self.followed_at = self._length[state], self._end[state]
        for _ in range(REFRESHED):
            if state <= 0:
                return
            self._end[state] = self.size
            state = self._suffix[state]
