"""Where the time of the engine's steps goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ianvs_specdec.decoding.request import Request


class Stopwatch:
    """``began`` is the moment at which the lap began."""

    def __init__(self) -> None:
        self.began = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the lap before."""
        before, self.began = self.began, time.perf_counter()
        return self.began - before


class Meter:
    """Measures each step: ``draft``, ``verify``, ``other`` and ``choosing`` are its seconds so far, as ``Finished`` has
    them."""

    draft = verify = other = choosing = 0.0
    _since: float | None = None
    """The moment up to which time belongs to the steps before, or to no step; None: there was nothing to do in
    between."""

    def begin(self) -> None:
        """A step begins."""
        self._watch, self.draft, self.choosing = Stopwatch(), 0.0, 0.0
        if self._since is None:
            self._since = self._watch.began

    def looked(self) -> None:
        """Drafters have said what they hold; budgets are chosen from here. That is in no step's time: a plan for many
        steps would fall upon one of them, most often one that tries something."""
        self.draft = self._watch.lap()

    def chosen(self) -> None:
        """The budgets are there."""
        self.choosing = self._leave_out()

    def drafted(self, asked: Sequence[Request]) -> None:
        """The drafts are there, those of the requests ``asked`` for any."""
        self.draft += self._watch.lap()

    def computed(self, rows: int, context: int, requests: int, prompt_rows: int, prompt_context: int) -> None:
        """The target has computed ``rows`` tokens of trees of so many ``requests``, whose sequences hold ``context``
        tokens, and ``prompt_rows`` of prompts of ``prompt_context`` tokens."""

    def failed(self) -> None:
        """The target could not compute the step: what that took is in no step's time."""
        self._since = None

    def verified(self) -> None:
        """What of the drafts is right is known, and whose prompt is read has its first token."""
        self.verify = self._watch.lap()

    def emitted(self) -> None:
        """Tokens were put out or sent on, which is neither drafting nor verifying."""
        self._watch.lap()

    def committed(self) -> None:
        self.verify += self._watch.lap()

    def observed(self) -> None:
        self.draft += self._watch.lap()
        assert self._since is not None
        now = self._watch.began
        self.other, self._since = max(now - self._since - self.draft - self.verify, 0.0), now

    def learned(self) -> None:
        """The length was told of the step, which is in no step's time either."""
        self._leave_out()

    def _leave_out(self) -> float:
        assert self._since is not None
        left_out = self._watch.lap()
        self._since += left_out
        return left_out

    def end(self, busy: bool) -> None:
        """The step is over; ``busy``: there is more to do, so that the next one follows at once."""
        if not busy:
            self._since = None
