"""A request that is held back at its prompt's end, until somebody has looked at what the model thinks of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ianvs_specdec.decoding.probe import Probe
from ianvs_specdec.errors import AbandonedError
from ianvs_specdec.types import Completion, Hints

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


class Probed:
    """``ask`` answers the request with the hints that it is given, in a thread of its own; ``wake`` wakes the engine.

    Either ``go_on`` or ``drop`` has to be called: until then the request holds its sequence. What it waits is part of
    its times.
    """

    def __init__(
        self, ask: Callable[[Hints], Completion], layers: Sequence[int], hints: Hints, wake: Callable[[], None]
    ) -> None:
        self._ask, self._hints, self._wake = ask, hints, wake
        self._began = time.perf_counter()
        self._told = threading.Event()
        self._probe = Probe(layers, self._tell)
        self._dropped = False
        self._answer: Future[Completion] = Future()
        self.seconds = float("nan")
        """From the request to its states."""
        threading.Thread(target=self._run, name="probed", daemon=True).start()

    @property
    def states(self) -> Tensor:
        """Pooled hidden states of the prompt, float32 ``[layers, 2 * hidden]``; waits for them. Raises what the request
        ended with where it has none."""
        self._told.wait()
        if self._probe.states is None:
            self._answer.result()
        assert self._probe.states is not None
        return self._probe.states

    @property
    def halves(self) -> NDArray[np.float16]:
        """``states`` as they are kept: float16 [layers, 2 * hidden]. What is beyond its range, as single states of
        large models may be, becomes the largest number of it."""
        import numpy as np

        most = float(np.finfo(np.float16).max)
        return self.states.clamp(-most, most).numpy().astype(np.float16)

    @property
    def prompt_tokens(self) -> int:
        """Of the prompt, once its states are there."""
        return self._probe.prompt_tokens

    def go_on(self) -> Completion:
        """The answer. Raises what the request ended with."""
        self._probe.go_on()
        self._wake()
        return self._answer.result()

    def drop(self) -> None:
        """Nobody wants the answer: its sequence is freed when this returns."""
        self._dropped = True
        self._wake()
        with suppress(AbandonedError):
            self._answer.result()

    def _tell(self) -> None:
        self.seconds = time.perf_counter() - self._began
        self._told.set()

    def _given_up(self) -> bool:
        asked = self._hints.given_up
        return self._dropped or (asked is not None and asked())

    def _run(self) -> None:
        try:
            self._answer.set_result(self._ask(replace(self._hints, probe=self._probe, given_up=self._given_up)))
        except BaseException as error:
            self._answer.set_exception(error)
        finally:
            self._told.set()
