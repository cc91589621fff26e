"""An answer of the edge that is held back once its prompt is read, until it is decided who answers."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.answers.journal import KeptPrefill
from ianvs_specdec.errors import AnswerError, UserError
from ianvs_specdec.plugin.overlap import REQUESTS, Begun
from ianvs_specdec.plugin.response import Response

if TYPE_CHECKING:
    from ianvs_specdec.llm.probed import Probed

STATE = "<f2"
"""Of hidden states in the journal: float16, whatever the machine's byte order."""


class Waiting(NamedTuple):
    """A request that waits at its prompt's end, and what ``REQUESTS`` was told of it."""

    probed: Probed
    begun: Begun

    def drop(self) -> None:
        """Nobody wants its answer."""
        try:
            # What else it ended with concerns nobody any more.
            with suppress(AnswerError, UserError):
                self.probed.drop()
        finally:
            REQUESTS.end(self.begun)


class HeldAnswer:
    """``kept`` is the prompt's reading as the journal has it; ``unused`` what the edge has done where the query goes
    elsewhere. Nobody is ``waiting`` where an earlier request has read the prompt.
    """

    def __init__(self, kept: KeptPrefill, unused: Response, waiting: Waiting | None = None) -> None:
        self.kept, self.unused = kept, unused
        self._waiting = waiting
        self._mutex = threading.Lock()

    @property
    def states(self) -> NDArray[np.float16]:
        """[layers * 2 * hidden]"""
        return np.frombuffer(self.kept.prefill.states, STATE).astype(np.float16)

    def take(self) -> Waiting | None:
        """The request, if one waits still: the caller lets it go on, and tells ``REQUESTS`` of its end. From any
        thread; one is given it."""
        with self._mutex:
            waiting, self._waiting = self._waiting, None
        return waiting

    def drop(self) -> None:
        """Nobody wants the answer, unless somebody has taken the request."""
        if (waiting := self.take()) is not None:
            waiting.drop()
