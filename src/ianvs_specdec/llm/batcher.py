"""Requests from many threads on one engine: a thread of its own drives it."""

from __future__ import annotations

import threading

import torch

from ianvs_specdec.decoding.loop import Engine
from ianvs_specdec.decoding.request import Decoded, Request
from ianvs_specdec.errors import AnswerError


class Batcher:
    """One thread steps an ``engine`` as long as there are requests, and sleeps when there are none.

    ``threads`` are those of one operation of torch, which keeps the number for each thread that computes.
    """

    def __init__(self, engine: Engine, threads: int) -> None:
        self._engine, self._threads = engine, threads
        self._arrived: list[Request] = []
        self._waiting: dict[int, threading.Event] = {}
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._drive, name="engine", daemon=True)
        self._thread.start()

    def run(self, request: Request) -> Decoded:
        """Serve ``request`` with the others, and wait for its end. Raises what it ended with."""
        done = threading.Event()
        with self._wake:
            if self._closed:
                raise AnswerError("the model was closed")
            self._waiting[id(request)] = done
            self._arrived.append(request)
            self._wake.notify()
        try:
            done.wait()
        except BaseException:
            # Whoever waited was interrupted; the engine lets go of the sequence at its next step.
            request.cancel()
            raise
        return request.result()

    def close(self) -> None:
        """End what is under way, and the thread."""
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """As ``close``, without waiting for it."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _drive(self) -> None:
        torch.set_num_threads(self._threads)
        try:
            while self._next():
                self._tell(self._engine.step())
        except BaseException as error:
            self._give_up(AnswerError(f"the engine ended: {type(error).__name__}: {error}"))
            raise
        self._give_up(AnswerError("the model was closed before the answer was whole"))

    def _next(self) -> bool:
        """Let in who has arrived; sleep while there is nobody. False: it is closed."""
        with self._wake:
            while not (self._arrived or self._engine.busy or self._closed):
                self._wake.wait()
            for request in self._arrived:
                self._engine.add(request)
            self._arrived.clear()
            return not self._closed

    def _tell(self, over: list[Request]) -> None:
        for request in over:
            self._waiting.pop(id(request)).set()

    def _give_up(self, error: AnswerError) -> None:
        with self._wake:
            self._closed = True
            over = [*self._engine.close(), *self._arrived]
        for request in over:
            request.error = request.error or error
        self._tell(over)
