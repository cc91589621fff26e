"""Requests from many threads on one engine: a thread of its own drives it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from copy import copy
from dataclasses import replace

import torch

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Occupancy
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.request import Decoded, Request

log = logging.getLogger(__name__)


class Batcher:
    """One thread steps an ``engine`` as long as there is something to do, and sleeps while there is not.

    ``threads`` are those of one operation of torch, which keeps the number for each thread that computes.
    """

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine, self._threads = engine, threads
        self._arrived: list[Request] = []
        self._asked: dict[Request, Callable[[], None]] = {}
        self._over: list[Request] = []
        """Whose end is not reported yet."""
        self.on_compute_start: Callable[[], None] = lambda: None
        """Called on the engine's thread as a step begins to compute, and before the thread sleeps: see
        ``Engine.step``."""
        self._wake = threading.Condition()
        self._ended: Exception | None = None
        """Why nothing is served any more. Each request ends with a copy: threads that raise the same one would add to
        each other's traceback."""
        self._thread = threading.Thread(target=self._drive, name="engine", daemon=True)
        self._thread.start()

    def run(self, request: Request) -> Decoded:
        """Serve ``request`` with the others, and wait for its end. Raises what it ended with."""
        done = threading.Event()
        self.submit(request, done.set)
        try:
            done.wait()
        except BaseException:
            # The waiting thread was interrupted; the engine lets go of the sequence at its next step.
            request.cancel()
            raise
        return request.result()

    def submit(self, request: Request, over: Callable[[], None]) -> None:
        """Serve ``request`` with the others; ``over`` is called on the engine's thread once it has ended, at a
        time for ``on_compute_start``."""
        with self._wake:
            if self._ended is not None:
                raise copy(self._ended)
            self._asked[request] = over
            self._arrived.append(request)
            self._wake.notify()

    def wake(self) -> None:
        """Something that a request waited for has come, or a request was cancelled while all wait."""
        with self._wake:
            self._wake.notify()

    @property
    def occupancy(self) -> Occupancy:
        """The engine's, and who has come since its last step."""
        now = self._engine.occupancy
        return replace(now, waiting=now.waiting + len(self._arrived))

    def close(self) -> None:
        """End what is under way, and the thread: one that computes while the interpreter ends would abort it."""
        with self._wake:
            self._ended = self._ended or UserError("the model was closed")
            self._wake.notify()
        # A model that was not closed may be collected in this thread.
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _drive(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while self._next():
                over = self._engine.step(self._hand_out)
                self._over += over
        except Exception as error:
            log.error("the engine ended", exc_info=error)
            with self._wake:
                self._ended = RuntimeError(f"the engine ended: {type(error).__name__}: {error}")
        self._give_up()

    def _next(self) -> bool:
        """Admit new requests; sleep while there are none. False: it is closed."""
        if self._engine.idle:
            self._hand_out()
        with self._wake:
            while not (self._arrived or self._ended) and self._engine.idle:
                self._wake.wait()
            arrived, self._arrived = self._arrived, []
        for request in arrived:
            self._engine.add(request)
        return self._ended is None

    def _hand_out(self) -> None:
        self.on_compute_start()
        over, self._over = self._over, []
        self._tell(over)

    def _tell(self, over: list[Request]) -> None:
        for request in over:
            self._asked.pop(request)()

    def _give_up(self) -> None:
        """Report the error to all waiting requests, also those whose end a failed step did not report."""
        try:
            self._engine.close()
        finally:
            with self._wake:
                left = list(self._asked)
            for request in left:
                if not request.over:
                    request.error = copy(self._ended)
            self._tell(left)
