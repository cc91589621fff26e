"""Steps of the upper layers of a verifier's model, for edges that compute the lower ones."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.acceptance import choose
from ianvs_specdec.engine.loop import MAX_BATCH_SIZE
from ianvs_specdec.engine.memory import sequence_budget
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.net.split import split_pb2 as pb
from ianvs_specdec.net.split.wire import (
    numerics_mismatch,
    parents_from_offsets,
    read_sampling,
    row_bytes,
    unpack_states,
)
from ianvs_specdec.serving.verifier.session import SESSION_FAILED, Metrics, Outbox, Stream, StreamError
from ianvs_specdec.targets.native.layer_range import LayerRange, Rows
from ianvs_specdec.targets.native.target import PROMPT_ROWS, NativeTarget

log = logging.getLogger(__name__)

MAX_ANSWERS = 1024
"""Concurrent answers of one edge."""
MAX_PENDING = 4
"""Messages of one edge that wait; further ones are not read."""
MICROS = 1e6


@dataclass
class _Answer:
    """``drafted``: the last step computed a draft, whose accepted path the next message says."""

    state: Any
    sampling: Sampling
    noise: Noise
    drafted: bool = False
    memory: int = 0


@dataclass(eq=False)
class _Work:
    """A message, and its rows and hidden states for a step."""

    session: SliceSession
    slice: pb.Slice
    rows: int
    parts: list[tuple[_Answer, Rows]] = field(default_factory=list)
    states: Tensor = field(default_factory=lambda: torch.empty(0))
    arrived: float = field(default_factory=time.perf_counter)


class Slices:
    """Computes the messages of all streams in one thread; waiting messages of different streams share a step."""

    def __init__(self, target: Any, draft: int, idle: float) -> None:
        self._native = native = target if isinstance(target, NativeTarget) else None
        self.numerics = native.numerics if native else ""
        self.idle, self.max_tree = idle, draft + 1
        self.max_rows = MAX_BATCH_SIZE * self.max_tree + PROMPT_ROWS
        """Rows of a step, and of a message."""
        self.largest = row_bytes(native.native.hidden, pb.FLOAT32) * self.max_rows if native else 0
        """Maximum bytes of the hidden states of one message."""
        self.memory = sequence_budget(native.device) if native else None
        self.sessions: set[SliceSession] = set()
        self._ranges: dict[int, LayerRange] = {}
        self._waiting: list[_Work] = []
        self._lock = threading.Lock()
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, "slices", initializer=torch.set_num_threads, initargs=(threads,))
        self._layer_seconds: float | None = None

    async def layer_seconds(self) -> float:
        """Seconds of a layer in a step of one row, measured once; 0 if the model cannot be sliced."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._measure)

    def _measure(self) -> float:
        if self._layer_seconds is None:
            self._layer_seconds = self._native.layer_seconds() if self._native else 0.0
        return self._layer_seconds

    def open(self, outbox: Outbox, cut: pb.Cut, counts: Metrics) -> SliceSession:
        """Raises ``StreamError``."""
        if (whole := self._native) is None:
            raise StreamError(pb.INVALID, "only models of the native step can be sliced")
        if not 0 < cut.layer < whole.layers or cut.states not in pb.States.values():
            reason = f"a model of {whole.layers} layers is cut at 1 to {whole.layers - 1}, not {cut.layer}"
            raise StreamError(pb.INVALID, f"{reason}; formats of states: {', '.join(pb.States.keys())}")
        if cut.numerics != self.numerics:
            raise StreamError(pb.INVALID, numerics_mismatch(cut.numerics, self.numerics))
        if cut.layer not in self._ranges:
            try:
                self._ranges[cut.layer] = whole.part(cut.layer, whole.layers)
            except UserError as error:
                raise StreamError(pb.INVALID, str(error)) from error
        session = SliceSession(self, self._ranges[cut.layer], cut.states, whole.window, outbox, counts)
        self.sessions.add(session)
        outbox.put(pb.Down(opened=pb.Opened()))
        return session

    def full(self) -> bool:
        """Whether the answers of all edges exceed the memory for sequences."""
        used = sum(session.memory for session in tuple(self.sessions))
        return self.memory is not None and used > self.memory

    def submit(self, work: _Work) -> None:
        with self._lock:
            self._waiting.append(work)
        self._pool.submit(self._compute)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _compute(self) -> None:
        """Compute waiting messages in one step. If it fails, each is computed alone."""
        works = [work for work in self._next() if work.session.prepare(work)]
        if not self._step(works):
            for work in works:
                if len(works) == 1 or not self._step([work]):
                    work.session.fail(StreamError(pb.FAILED, SESSION_FAILED))
        for work in works:
            work.session.done()

    def _next(self) -> list[_Work]:
        """The first message of each stream with the same layers, up to the limits of a step."""
        with self._lock:
            first: dict[SliceSession, _Work] = {}
            for work in self._waiting:
                first.setdefault(work.session, work)
            works: list[_Work] = []
            answers = rows = 0
            for work in first.values():
                answers, rows = answers + len(work.slice.rows), rows + work.rows
                if works and (answers > MAX_BATCH_SIZE or rows > self.max_rows):
                    break
                if not works or work.session.layers is works[0].session.layers:
                    works.append(work)
            self._waiting = [work for work in self._waiting if work not in works]
        return works

    def _step(self, works: Sequence[_Work]) -> bool:
        """Compute ``works``. Returns False if it fails; then no state has changed."""
        rows = [rows for work in works for _, rows in work.parts]
        try:
            states = torch.cat([work.states for work in works]) if rows else torch.empty(0)
            logits = works[0].session.layers.step(rows, states) if rows else states
        except Exception as error:
            log.error("a step of slices failed", exc_info=error)
            return False
        for work in works:
            wanted = sum(rows.wanted for _, rows in work.parts)
            work.session.computed(work, logits[:wanted])
            logits = logits[wanted:]
        return True


class SliceSession(Stream):
    """The answers of one edge, over one stream. ``prepare`` and ``computed`` run on the computing thread, all else on
    the event loop."""

    def __init__(
        self, slices: Slices, layers: LayerRange, states: pb.States, window: int | None, outbox: Outbox, counts: Metrics
    ) -> None:
        super().__init__(outbox, counts, slices.idle, "slice")
        self._slices, self.layers, self._states, self._window = slices, layers, states, window
        self._answers: dict[int, _Answer] = {}
        self._seconds = self._since = 0.0
        """Computing time since the last tokens were sent; end of the last message."""
        self._closed = False
        self.memory = 0
        """Bytes of its answers."""
        self._pending, self._room = 0, asyncio.Semaphore(MAX_PENDING)
        self._expect(True)

    @property
    def ended(self) -> bool:
        """Whether no answer is in progress."""
        return self._closed or not self._answers

    def take(self, message: pb.Up) -> None:
        """Handle a message. Raises ``StreamError``."""
        if not message.HasField("slice"):
            raise StreamError(pb.INVALID, "after a Cut, only slices may follow")
        part, slices = message.slice, self._slices
        rows = sum(one.more + 1 for one in part.rows)
        if len(part.states) != rows * row_bytes(self.layers.model.hidden, self._states):
            raise StreamError(pb.INVALID, "each row needs a hidden state")
        if rows > slices.max_rows or len(part.rows) > MAX_BATCH_SIZE or len(part.ended) > MAX_ANSWERS:
            limits = f"{MAX_BATCH_SIZE} answers, {slices.max_rows} rows and {MAX_ANSWERS} ends"
            raise StreamError(pb.INVALID, f"a message has at most {limits}")
        if not self._closed:
            self._pending += 1
            self._expect(False)
            slices.submit(_Work(self, part, rows))

    async def room(self) -> None:
        """Wait until another message may be taken, after each one."""
        await self._room.acquire()

    def done(self) -> None:
        """A message was computed; called on the computing thread."""
        self._on_loop(self._done)

    def fail(self, error: Exception) -> None:
        """End the stream; called on the computing thread."""
        self._on_loop(self.end if isinstance(error, StreamError) else self._fail, error)

    def _done(self) -> None:
        self._pending -= 1
        self._room.release()
        self._expect(not (self._pending or self._closed))

    def cancel(self) -> None:
        super().cancel()
        self._closed = True
        self._slices.sessions.discard(self)

    def prepare(self, work: _Work) -> bool:
        """Turn a message into rows of a step. Returns False if it is invalid or the stream has ended."""
        if self._closed:
            return False
        try:
            work.states = unpack_states(work.slice.states, self.layers.model.hidden, self._states)
            for number in work.slice.ended:
                self._answers.pop(number, None)
            work.parts = [self._part(message) for message in work.slice.rows]
            if len({id(answer) for answer, _ in work.parts}) < len(work.parts):
                raise ValueError("a message has rows of an answer only once")
        except (ValueError, UserError) as error:
            self.fail(StreamError(pb.INVALID, str(error)))
            return False
        except Exception as error:
            self.fail(error)
            return False
        self.memory = sum(answer.memory for answer in self._answers.values())
        if self._slices.full():
            self.fail(StreamError(pb.BUSY, "this verifier has no memory for this answer now: try again later"))
            return False
        return True

    def computed(self, work: _Work, logits: Tensor) -> None:
        """Choose and send tokens from the ``logits`` of the wanted rows."""
        tokens: list[int] = []
        try:
            for answer, rows in work.parts:
                tokens += choose(logits[: rows.wanted], _positions(rows), answer.sampling, answer.noise)
                logits = logits[rows.wanted :]
        except Exception as error:
            self.fail(error)
            return
        now = time.perf_counter()
        self._seconds += now - max(work.arrived, self._since)
        self._since = now
        if tokens:
            chosen = pb.Chosen(tokens=tokens, micros=round(self._seconds * MICROS))
            self._seconds = 0.0
            self._on_loop(self._outbox.put, pb.Down(chosen=chosen))

    def _part(self, message: pb.Rows) -> tuple[_Answer, Rows]:
        if message.HasField("begins"):
            if len(self._answers) >= MAX_ANSWERS:
                raise ValueError(f"an edge has at most {MAX_ANSWERS} concurrent answers")
            sampling, unembed = read_sampling(message.begins), self.layers.model.unembed
            assert unembed is not None
            noise = Noise(sampling.seed, unembed.out, torch.device("cpu"))
            self._answers[message.answer] = _Answer(self.layers.model.open(), sampling, noise)
        if (answer := self._answers.get(message.answer)) is None:
            raise ValueError(f"answer {message.answer} has not begun on this stream")
        if any(node >= self._slices.max_tree for node in message.path):
            raise ValueError("a path has unknown nodes")
        if answer.drafted:
            answer.state.commit([0, *message.path])
        count = message.more + 1
        answer.drafted = message.kind == pb.TREE
        if self._window is not None and len(answer.state) + count > self._window:
            raise ValueError(f"the rows exceed the model's window of {self._window} positions")
        answer.memory = self.layers.model.memory(len(answer.state) + count)
        if not answer.drafted:
            return answer, Rows(answer.state, count, last=message.kind == pb.PROMPT)
        if count > self._slices.max_tree:
            raise ValueError(f"a draft has at most {self._slices.max_tree - 1} tokens here")
        return answer, Rows(answer.state, count, parents_from_offsets(message.up, count))


def _positions(rows: Rows) -> Sequence[int]:
    """Positions of the tokens after the wanted rows. Called after the step: the state includes rows of a prompt."""
    length = len(rows.state)
    if rows.parents is None:
        return [length] * rows.wanted
    depths: list[int] = []
    for parent in rows.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return [length + depth for depth in depths]
