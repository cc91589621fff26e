"""Runs an engine in its own thread for requests from many threads."""

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
    """A thread that steps ``engine`` while there are requests. ``threads``: torch threads of one operation."""

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine, self._threads = engine, threads
        self._arrived: list[Request] = []
        self._callbacks: dict[Request, Callable[[], None]] = {}
        self._over: list[Request] = []
        """Ended requests whose callbacks are due."""
        self.on_compute_start: Callable[[], None] = lambda: None
        """Called on the engine's thread as a step begins to compute, and before the thread sleeps (``Engine.step``)."""
        self._wake = threading.Condition()
        self._ended: Exception | None = None
        """Why nothing is served any more. Each request raises a copy: a shared one would collect their tracebacks."""
        self._thread = threading.Thread(target=self._drive, name="engine", daemon=True)
        self._thread.start()

    def run(self, request: Request) -> Decoded:
        """Run ``request`` and wait for its result, or raise its error."""
        done = threading.Event()
        self.submit(request, done.set)
        try:
            done.wait()
        except BaseException:
            # The waiting thread was interrupted; the engine drops the request at its next step.
            request.cancel()
            raise
        return request.result()

    def submit(self, request: Request, over: Callable[[], None]) -> None:
        """Run ``request``. ``over`` is called on the engine's thread after its end, as ``on_compute_start`` is."""
        with self._wake:
            if self._ended is not None:
                raise copy(self._ended)
            self._callbacks[request] = over
            self._arrived.append(request)
            self._wake.notify()

    def wake(self) -> None:
        """Resume after a remote draft arrived, or a request was cancelled."""
        with self._wake:
            self._wake.notify()

    @property
    def occupancy(self) -> Occupancy:
        """The engine's, plus requests that arrived since its last step."""
        now = self._engine.occupancy
        return replace(now, waiting=now.waiting + len(self._arrived))

    def close(self) -> None:
        """End all requests and the thread. A thread that computes while the interpreter exits would abort it."""
        with self._wake:
            self._ended = self._ended or UserError("the model was closed")
            self._wake.notify()
        # A model that was not closed may be garbage-collected in this thread.
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _drive(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while self._next():
                over = self._engine.step(self._flush)
                self._over += over
        except Exception as error:
            log.error("the engine ended", exc_info=error)
            with self._wake:
                self._ended = RuntimeError(f"the engine ended: {type(error).__name__}: {error}")
        self._fail_all()

    def _next(self) -> bool:
        """Admit new requests, or sleep until there are any. Returns False once closed."""
        if self._engine.idle:
            self._flush()
        with self._wake:
            while not (self._arrived or self._ended) and self._engine.idle:
                self._wake.wait()
            arrived, self._arrived = self._arrived, []
        for request in arrived:
            self._engine.add(request)
        return self._ended is None

    def _flush(self) -> None:
        self.on_compute_start()
        over, self._over = self._over, []
        self._notify(over)

    def _notify(self, over: list[Request]) -> None:
        for request in over:
            self._callbacks.pop(request)()

    def _fail_all(self) -> None:
        """End all requests with the error, including those whose end a failed step did not report."""
        try:
            self._engine.close()
        finally:
            with self._wake:
                left = list(self._callbacks)
            for request in left:
                if not request.end_if_cancelled():
                    request.error = copy(self._ended)
            self._notify(left)
