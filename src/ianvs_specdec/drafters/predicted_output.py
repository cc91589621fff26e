"""Predicted output: drafts are copied from a text that the user expects back, such as an edited document."""

from __future__ import annotations

from ianvs_specdec.engine import Context, Drafter, Output, Target, TokenTree

LONGEST_MATCH = 8
FIRST_DRAFT, PROBE = 16, 2
PATIENCE = 2


class PredictedOutput(Drafter):
    """Follows ``context.prediction`` from its start as long as the output agrees.

    After a token that disagrees, it looks for the last 8 tokens of the output in the prediction, or fewer, down to
    ``resync``: first ahead of the current position, then behind, the nearest one each. If none is found, the
    disagreeing tokens replace as many of the prediction. Drafts have 16 tokens, doubled each time all of them are
    right; after two drafts in a row with nothing right they have 2 until one is right. Without a prediction nothing is
    drafted.
    """

    def __init__(self, resync: int = 1) -> None:
        self._resync = resync

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._prediction = list(context.prediction)
        self._occurrences: dict[int, list[int]] = {}
        for position, token in enumerate(self._prediction):
            self._occurrences.setdefault(token, []).append(position)
        self._position = 0
        self._followed = context.prompt_tokens
        self._draft = FIRST_DRAFT
        self._misses = 0

    def propose(self, context: Context, budget: int) -> TokenTree:
        self._follow(context)
        length = min(budget, self._draft, context.remaining - 1)
        draft = self._prediction[self._position : self._position + max(length, 0)]
        return TokenTree.chain(context.tokens[-1], draft)

    def _follow(self, context: Context) -> None:
        tokens, prediction = context.tokens, self._prediction
        new = tokens[self._followed :]
        expected = prediction[self._position : self._position + len(new)]
        self._followed, self._position = len(tokens), self._position + len(new)
        self._misses = 0 if new[:1] == expected[:1] else self._misses + 1
        if new == expected:
            self._draft = 2 * self._draft if len(new) > self._draft else max(self._draft, FIRST_DRAFT)
            return
        self._draft = FIRST_DRAFT if self._misses < PATIENCE else PROBE
        output = tokens[max(context.prompt_tokens, len(tokens) - LONGEST_MATCH) :]
        found = self._find(output)
        if found is not None:
            self._position = found

    def _find(self, output: list[int]) -> int | None:
        """The position after the best occurrence of the end of ``output`` in the prediction."""
        best: tuple[int, bool, int] | None = None
        for last in self._occurrences.get(output[-1], ()):
            length = 1
            while length < min(len(output), last + 1) and self._prediction[last - length] == output[-1 - length]:
                length += 1
            # The longest, then one ahead, then the nearest.
            ahead = last + 1 >= self._position
            rank = (length, ahead, -abs(last + 1 - self._position))
            if length >= self._resync and (best is None or rank > best):
                best, found = rank, last + 1
        return None if best is None else found
