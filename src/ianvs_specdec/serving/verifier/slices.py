"""The upper layers of a verifier's model, for edges that compute the lower ones."""

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
from ianvs_specdec.engine.loop import MOST_AT_ONCE
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.net.split.split_pb2 import (
    FAILED,
    FLOAT32,
    INVALID,
    TREE,
    Chosen,
    Cut,
    Down,
    Opened,
    Slice,
    States,
    Up,
)
from ianvs_specdec.net.split.split_pb2 import PROMPT as PROMPT_KIND
from ianvs_specdec.net.split.split_pb2 import Rows as RowsMessage
from ianvs_specdec.net.split.states import row_bytes, unpacked
from ianvs_specdec.net.split.wire import parents_of, sampling_of
from ianvs_specdec.serving.verifier.session import Counts, Outbox, Refused
from ianvs_specdec.targets.native.range import LayerRange, Rows
from ianvs_specdec.targets.native.target import PROMPT_ROWS, NativeTarget

log = logging.getLogger(__name__)

MOST_ANSWERS = 1024
"""Of one edge at a time."""
MICROS = 1e6


@dataclass
class _Answer:
    """One answer in the upper layers; ``drafted``: a tree was computed, of which the edge has yet to say what stays."""

    state: Any
    sampling: Sampling
    noise: Noise
    drafted: bool = False


@dataclass(eq=False)
class _Work:
    """What came of one message: rows for a step, and the answers that they belong to."""

    session: SliceSession
    slice: Slice
    rows: list[Rows] = field(default_factory=list)
    answers: list[_Answer] = field(default_factory=list)
    given: Tensor = field(default_factory=lambda: torch.empty(0))


class Slices:
    """One thread computes the messages of all streams; those that wait, one of each stream, share a step."""

    def __init__(self, target: Any, draft: int) -> None:
        self._target, self.most_rows = target, draft + 1
        rows = MOST_AT_ONCE * self.most_rows + PROMPT_ROWS
        self.largest = row_bytes(target.native.hidden, FLOAT32) * rows if isinstance(target, NativeTarget) else 0
        self._ranges: dict[int, LayerRange] = {}
        self._waiting: list[_Work] = []
        self._lock = threading.Lock()
        threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(1, "slices", initializer=torch.set_num_threads, initargs=(threads,))
        self._layer_seconds: float | None = None

    def layer_seconds(self) -> float:
        """What a layer takes in a step of one row, measured once; 0 where the model cannot be sliced."""
        if self._layer_seconds is None:
            self._layer_seconds = self._target.layer_seconds() if isinstance(self._target, NativeTarget) else 0.0
        return self._layer_seconds

    def layers_from(self, layer: int) -> LayerRange:
        """Raises ``Refused``."""
        target = self._target
        if not isinstance(target, NativeTarget):
            raise Refused(INVALID, f"engine {target.kind} cannot be sliced: the verifier needs engine native")
        if not 0 < layer < target.layers:
            raise Refused(INVALID, f"a model of {target.layers} layers is cut at 1 to {target.layers - 1}, not {layer}")
        if layer not in self._ranges:
            try:
                self._ranges[layer] = target.part(layer, target.layers)
            except UserError as error:
                raise Refused(INVALID, str(error)) from error
        return self._ranges[layer]

    def open(self, outbox: Outbox, cut: Cut, counts: Counts) -> SliceSession:
        """Raises ``Refused``."""
        if cut.states not in States.values():
            raise Refused(INVALID, "unknown format of hidden states: use the same version on both sides")
        session = SliceSession(self, self.layers_from(cut.layer), cut.states, self._target.window, outbox, counts)
        outbox.put(Down(opened=Opened()))
        return session

    def submit(self, session: SliceSession, message: Slice) -> None:
        with self._lock:
            self._waiting.append(_Work(session, message))
        self._pool.submit(self._compute)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _compute(self) -> None:
        """One step for those that wait, as far as they share layers."""
        with self._lock:
            chosen: dict[SliceSession, _Work] = {}
            for work in self._waiting:
                chosen.setdefault(work.session, work)
            works = [work for work in chosen.values() if work.session.layers is next(iter(chosen)).layers]
            self._waiting = [work for work in self._waiting if work not in works]
        try:
            ready = [work for work in works if work.session.prepare(work)]
            began = time.perf_counter()
            rows = [rows for work in ready for rows in work.rows]
            logits = ready[0].session.layers.step(rows, torch.cat([work.given for work in ready])) if rows else None
            for work in ready:
                wanted = sum(rows.wanted for rows in work.rows)
                own, logits = (None, None) if logits is None else (logits[:wanted], logits[wanted:])
                work.session.computed(work, own, time.perf_counter() - began)
        except Exception as error:
            log.error("a step of slices failed", exc_info=error)
            for work in works:
                work.session.fail(FAILED, "this step failed; the verifier's log says why")


class SliceSession:
    """The answers of one edge, over one stream. ``take``, ``end`` and ``cancel`` are called on the event loop, what
    else there is on the thread that computes."""

    def __init__(
        self, slices: Slices, layers: LayerRange, states: States, window: int | None, outbox: Outbox, counts: Counts
    ) -> None:
        self._slices, self.layers, self._states, self._window = slices, layers, states, window
        self._outbox, self._counts = outbox, counts
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, _Answer] = {}
        self._seconds = 0.0
        self._closed = False

    @property
    def ended(self) -> bool:
        """Whether no answer is under way."""
        return self._closed or not self._answers

    def take(self, message: Up) -> None:
        """Raises ``Refused``."""
        if not message.HasField("slice"):
            raise Refused(INVALID, "only slices follow the cut of a model")
        if not self._closed:
            self._slices.submit(self, message.slice)

    def end(self, refused: Refused) -> None:
        self._counts.refused(refused.code)
        self._outbox.close(Down(error=refused.to_message()))
        self.cancel()

    def cancel(self) -> None:
        """Nothing more is wanted."""
        self._closed = True
        self._outbox.close()

    def fail(self, code: Any, message: str) -> None:
        self._later(lambda: self.end(Refused(code, message)))

    def prepare(self, work: _Work) -> bool:
        """Turn a message into rows of a step. False where it is refused, or nothing is wanted any more."""
        if self._closed:
            return False
        try:
            work.given = unpacked(work.slice.states, self.layers.model.hidden, self._states)
            for number in work.slice.ended:
                self._answers.pop(number, None)
            if len({message.answer for message in work.slice.rows}) < len(work.slice.rows):
                raise ValueError("an answer has rows once in a message")
            for message in work.slice.rows:
                answer = self._answer(message)
                work.answers.append(answer)
                work.rows.append(self._rows(message, answer))
            if sum(rows.count for rows in work.rows) != len(work.given):
                raise ValueError("a hidden state belongs to each row")
        except (ValueError, UserError, MemoryError) as error:
            self.fail(FAILED if isinstance(error, MemoryError) else INVALID, str(error))
            return False
        return True

    def computed(self, work: _Work, logits: Tensor | None, seconds: float) -> None:
        """``logits`` of the wanted rows."""
        self._seconds += seconds
        if logits is None or not len(logits):
            return
        began, tokens = time.perf_counter(), []
        for rows, answer in zip(work.rows, work.answers, strict=True):
            own, logits = logits[: rows.wanted], logits[rows.wanted :]
            tokens += choose(own, _positions(rows), answer.sampling, answer.noise)
        self._seconds += time.perf_counter() - began
        message = Down(chosen=Chosen(tokens=tokens, micros=round(self._seconds * MICROS)))
        self._seconds = 0.0
        self._later(lambda: self._outbox.put(message))

    def _answer(self, message: RowsMessage) -> _Answer:
        if message.HasField("begins"):
            if len(self._answers) >= MOST_ANSWERS:
                raise ValueError(f"an edge has at most {MOST_ANSWERS} answers at a time")
            sampling = sampling_of(message.begins)
            noise = Noise(sampling.seed, self.layers.model.unembed.out, torch.device("cpu"))  # type: ignore[union-attr]
            self._answers[message.answer] = _Answer(self.layers.model.open(), sampling, noise)
        answer = self._answers.get(message.answer)
        if answer is None:
            raise ValueError(f"answer {message.answer} has not begun on this stream")
        if answer.drafted:
            answer.state.commit([0, *message.path])
            answer.drafted = False
        return answer

    def _rows(self, message: RowsMessage, answer: _Answer) -> Rows:
        count = message.more + 1
        if self._window is not None and len(answer.state) + count > self._window:
            raise ValueError(f"the rows are beyond the model's window of {self._window} positions")
        if message.kind != TREE:
            return Rows(answer.state, count, last=message.kind == PROMPT_KIND)
        if count > self._slices.most_rows:
            raise ValueError(f"a draft has at most {self._slices.most_rows - 1} tokens here")
        answer.drafted = True
        return Rows(answer.state, count, parents_of(message.up, count))

    def _later(self, function: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def _positions(rows: Rows) -> Sequence[int]:
    """Of the tokens behind the wanted rows. Called after the step: rows of a prompt are part of the state."""
    length = len(rows.state)
    if rows.parents is None:
        return [length] * rows.wanted
    depths: list[int] = []
    for parent in rows.parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return [length + depth + 1 for depth in depths]
