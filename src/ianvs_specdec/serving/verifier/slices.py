"""The upper layers of a verifier's model, for edges that compute the lower ones."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
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
from ianvs_specdec.net.split.states import row_bytes, unpacked
from ianvs_specdec.net.split.wire import disagreement, parents_of, sampling_of
from ianvs_specdec.serving.verifier.session import Counts, Outbox, Refused
from ianvs_specdec.targets.native.range import LayerRange, Rows
from ianvs_specdec.targets.native.target import PROMPT_ROWS, NativeTarget

log = logging.getLogger(__name__)

MOST_ANSWERS = 1024
"""Of one edge at a time."""
MOST_WORKS = 4
"""Messages of one edge that wait: the next one is read when one of them is done."""
STEP_FAILED = "this step failed; the verifier's log says why"
MICROS = 1e6


@dataclass
class _Answer:
    """``drafted``: a tree was computed, of which the edge has yet to say what stays."""

    state: Any
    sampling: Sampling
    noise: Noise
    drafted: bool = False
    memory: int = 0


@dataclass(eq=False)
class _Work:
    """A message, and what it has for a step."""

    session: SliceSession
    slice: pb.Slice
    rows: int
    parts: list[tuple[_Answer, Rows]] = field(default_factory=list)
    given: Tensor = field(default_factory=lambda: torch.empty(0))
    arrived: float = field(default_factory=time.perf_counter)


class Slices:
    """One thread computes the messages of all streams: those that wait, one of each stream, share a step."""

    def __init__(self, target: Any, draft: int, idle: float) -> None:
        self._native = native = target if isinstance(target, NativeTarget) else None
        self.numerics = native.numerics if native else ""
        self.idle, self.most_rows = idle, draft + 1
        self.most_at_once = MAX_BATCH_SIZE * self.most_rows + PROMPT_ROWS
        """Rows of a step, and so of a message."""
        self.largest = row_bytes(native.native.hidden, pb.FLOAT32) * self.most_at_once if native else 0
        """Bytes of the hidden states of one message."""
        self.memory = sequence_budget(native.device) if native else None
        self.sessions: set[SliceSession] = set()
        self._ranges: dict[int, LayerRange] = {}
        self._waiting: list[_Work] = []
        self._lock = threading.Lock()
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, "slices", initializer=torch.set_num_threads, initargs=(threads,))
        self._layer_seconds: float | None = None

    async def layer_seconds(self) -> float:
        """What a layer takes in a step of one row, measured once; 0 where the model cannot be sliced."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._timed)

    def _timed(self) -> float:
        if self._layer_seconds is None:
            self._layer_seconds = self._native.layer_seconds() if self._native else 0.0
        return self._layer_seconds

    def open(self, outbox: Outbox, cut: pb.Cut, counts: Counts) -> SliceSession:
        """Raises ``Refused``."""
        if (whole := self._native) is None:
            raise Refused(pb.INVALID, "only a model that the native step computes can be sliced")
        if not 0 < cut.layer < whole.layers or cut.states not in pb.States.values():
            reason = f"a model of {whole.layers} layers is cut at 1 to {whole.layers - 1}, not {cut.layer}"
            raise Refused(pb.INVALID, f"{reason}, and states have one of the formats {', '.join(pb.States.keys())}")
        if cut.numerics != self.numerics:
            raise Refused(pb.INVALID, disagreement(cut.numerics, self.numerics))
        if cut.layer not in self._ranges:
            try:
                self._ranges[cut.layer] = whole.part(cut.layer, whole.layers)
            except UserError as error:
                raise Refused(pb.INVALID, str(error)) from error
        session = SliceSession(self, self._ranges[cut.layer], cut.states, whole.window, outbox, counts)
        self.sessions.add(session)
        outbox.put(pb.Down(opened=pb.Opened()))
        return session

    def full(self) -> bool:
        """Whether the answers of all edges take more memory than there is for them."""
        held = sum(session.memory for session in tuple(self.sessions))
        return self.memory is not None and held > self.memory

    def submit(self, work: _Work) -> None:
        with self._lock:
            self._waiting.append(work)
        self._pool.submit(self._compute)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _compute(self) -> None:
        """One step for those that wait. Where one of several fails, each is computed alone."""
        works = [work for work in self._next() if work.session.prepare(work)]
        if not self._step(works):
            for work in works:
                if len(works) == 1 or not self._step([work]):
                    work.session.fail(pb.FAILED, STEP_FAILED)
        for work in works:
            work.session.done()

    def _next(self) -> list[_Work]:
        """The first message of each stream, as far as they share layers, and the bounds of a step allow."""
        with self._lock:
            first: dict[SliceSession, _Work] = {}
            for work in self._waiting:
                first.setdefault(work.session, work)
            works: list[_Work] = []
            answers = rows = 0
            for work in first.values():
                answers, rows = answers + len(work.slice.rows), rows + work.rows
                if works and (answers > MAX_BATCH_SIZE or rows > self.most_at_once):
                    break
                if not works or work.session.layers is works[0].session.layers:
                    works.append(work)
            self._waiting = [work for work in self._waiting if work not in works]
        return works

    def _step(self, works: Sequence[_Work]) -> bool:
        """Compute ``works``; False where that fails, with no state changed."""
        rows = [rows for work in works for _, rows in work.parts]
        try:
            given = torch.cat([work.given for work in works]) if rows else torch.empty(0)
            logits = works[0].session.layers.step(rows, given) if rows else given
        except Exception as error:
            log.error("a step of slices failed", exc_info=error)
            return False
        for work in works:
            wanted = sum(rows.wanted for _, rows in work.parts)
            work.session.computed(work, logits[:wanted])
            logits = logits[wanted:]
        return True


class SliceSession:
    """The answers of one edge, over one stream. ``take``, ``end`` and ``cancel`` are called on the event loop, what
    else there is on the thread that computes."""

    def __init__(
        self, slices: Slices, layers: LayerRange, states: pb.States, window: int | None, outbox: Outbox, counts: Counts
    ) -> None:
        self._slices, self.layers, self._states, self._window = slices, layers, states, window
        self._outbox, self._counts = outbox, counts
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, _Answer] = {}
        self._seconds = self._since = 0.0
        """From the arrivals of messages to their ends, since the last tokens; and when the last message was done."""
        self._closed = False
        self.memory = 0
        """Bytes of its answers."""
        self._works, self._room = 0, asyncio.Semaphore(MOST_WORKS)
        self._turn: asyncio.TimerHandle | None = None
        self._wait()

    @property
    def ended(self) -> bool:
        """Whether no answer is under way."""
        return self._closed or not self._answers

    def take(self, message: pb.Up) -> None:
        """Raises ``Refused``."""
        if not message.HasField("slice"):
            raise Refused(pb.INVALID, "only slices follow the cut of a model")
        given, slices = message.slice, self._slices
        rows = sum(part.more + 1 for part in given.rows)
        if len(given.states) != rows * row_bytes(self.layers.model.hidden, self._states):
            raise Refused(pb.INVALID, "a hidden state belongs to each row")
        if rows > slices.most_at_once or len(given.rows) > MAX_BATCH_SIZE or len(given.ended) > MOST_ANSWERS:
            bounds = f"{MAX_BATCH_SIZE} answers, {slices.most_at_once} rows and {MOST_ANSWERS} ends"
            raise Refused(pb.INVALID, f"a message has at most {bounds}")
        if not self._closed:
            self._works += 1
            self._wait()
            slices.submit(_Work(self, given, rows))

    async def room(self) -> None:
        """Wait until another message may be taken, after each that was."""
        await self._room.acquire()

    def done(self) -> None:
        """A message that was taken is computed."""
        self._later(self._done)

    def _done(self) -> None:
        self._works -= 1
        self._room.release()
        self._wait()

    def _wait(self) -> None:
        """End the session where it is the client's turn for too long."""
        if self._turn is not None:
            self._turn.cancel()
        self._turn = None
        if not (self._works or self._closed):
            idle = self._slices.idle
            reason = f"no slice came within {idle:g} s (--idle of the verifier)"
            self._turn = self._loop.call_later(idle, self.end, Refused(pb.IDLE, reason))

    def end(self, refused: Refused) -> None:
        self._counts.refused(refused.code)
        self._outbox.close(pb.Down(error=refused.to_message()))
        self.cancel()

    def cancel(self) -> None:
        """Nothing more is wanted."""
        self._closed = True
        self._wait()
        self._slices.sessions.discard(self)
        self._outbox.close()

    def fail(self, code: pb.Code, message: str) -> None:
        self._later(lambda: self.end(Refused(code, message)))

    def prepare(self, work: _Work) -> bool:
        """Turn a message into rows of a step. False where it is refused, or nothing is wanted any more."""
        if self._closed:
            return False
        try:
            work.given = unpacked(work.slice.states, self.layers.model.hidden, self._states)
            for number in work.slice.ended:
                self._answers.pop(number, None)
            work.parts = [self._part(message) for message in work.slice.rows]
            if len({id(answer) for answer, _ in work.parts}) < len(work.parts):
                raise ValueError("an answer has rows once in a message")
        except (ValueError, UserError) as error:
            self.fail(pb.INVALID, str(error))
            return False
        except Exception as error:
            log.error("a slice failed", exc_info=error)
            self.fail(pb.FAILED, STEP_FAILED)
            return False
        self.memory = sum(answer.memory for answer in self._answers.values())
        if self._slices.full():
            self.fail(pb.BUSY, "this verifier has no memory for more of this answer now: try again later")
            return False
        return True

    def computed(self, work: _Work, logits: Tensor) -> None:
        """``logits`` of the wanted rows."""
        tokens: list[int] = []
        try:
            for answer, rows in work.parts:
                tokens += choose(logits[: rows.wanted], _positions(rows), answer.sampling, answer.noise)
                logits = logits[rows.wanted :]
        except Exception as error:
            log.error("the tokens of a slice could not be chosen", exc_info=error)
            self.fail(pb.FAILED, STEP_FAILED)
            return
        now = time.perf_counter()
        self._seconds += now - max(work.arrived, self._since)
        self._since = now
        if tokens:
            chosen = pb.Chosen(tokens=tokens, micros=round(self._seconds * MICROS))
            self._seconds = 0.0
            self._later(lambda: self._outbox.put(pb.Down(chosen=chosen)))

    def _part(self, message: pb.Rows) -> tuple[_Answer, Rows]:
        if message.HasField("begins"):
            if len(self._answers) >= MOST_ANSWERS:
                raise ValueError(f"an edge has at most {MOST_ANSWERS} answers at a time")
            sampling, unembed = sampling_of(message.begins), self.layers.model.unembed
            assert unembed is not None
            noise = Noise(sampling.seed, unembed.out, torch.device("cpu"))
            self._answers[message.answer] = _Answer(self.layers.model.open(), sampling, noise)
        if (answer := self._answers.get(message.answer)) is None:
            raise ValueError(f"answer {message.answer} has not begun on this stream")
        if any(node >= self._slices.most_rows for node in message.path):
            raise ValueError("a path has nodes of the tree before it")
        if answer.drafted:
            answer.state.commit([0, *message.path])
        count = message.more + 1
        answer.drafted = message.kind == pb.TREE
        if self._window is not None and len(answer.state) + count > self._window:
            raise ValueError(f"the rows are beyond the model's window of {self._window} positions")
        answer.memory = self.layers.model.memory(len(answer.state) + count)
        if not answer.drafted:
            return answer, Rows(answer.state, count, last=message.kind == pb.PROMPT)
        if count > self._slices.most_rows:
            raise ValueError(f"a draft has at most {self._slices.most_rows - 1} tokens here")
        return answer, Rows(answer.state, count, parents_of(message.up, count))

    def _later(self, function: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def _positions(rows: Rows) -> Sequence[int]:
    """Of the tokens behind the wanted rows. Called after the step: rows of a prompt are part of the state."""
    length = len(rows.state)
    if rows.parents is None:
        return [length] * rows.wanted
    depths: list[int] = []
    for parent in rows.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 1)
    return [length + depth for depth in depths]
