"""A target whose upper layers are computed by a verifier: hidden states go up, tokens come down."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor

from ianvs_specdec.backends.split.edge.connection import FRAME_BYTES, Connection, Stream, StreamBroken, refusal
from ianvs_specdec.backends.split.edge.session import recover
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.contracts import Output, PromptChunk, StepInput, prompt_chunks
from ianvs_specdec.engine.request import Request
from ianvs_specdec.engine.tree import TokenTree
from ianvs_specdec.net.split import split_pb2 as pb
from ianvs_specdec.net.split.wire import pack_states, parent_offsets, write_sampling
from ianvs_specdec.targets.native.layer_range import Rows
from ianvs_specdec.targets.native.target import PROMPT_ROWS, NativeTarget

MICROS = 1e6
PAUSE = 0.02
"""Seconds before a second new stream in one exchange."""


@dataclass
class AnswerCosts:
    """Costs of an answer; shared ones are divided in proportion to rows.

    ``up``, ``down``: bytes of messages with gRPC's prefix. ``edge``, ``work``: seconds of computation on edge and
    verifier after the first token; ``prefill``: the verifier's before it. ``lost``: seconds without a stream.
    """

    up: float = 0.0
    down: float = 0.0
    edge: float = 0.0
    prefill: float = 0.0
    work: float = 0.0
    breaks: int = 0
    lost: float = 0.0

    def add(self, **more: float) -> None:
        for name, value in more.items():
            setattr(self, name, getattr(self, name) + value)


class SlicedTarget:
    """Implements ``contracts.Target`` with the layers of ``whole`` below ``cut.layer`` and a verifier's above.

    A broken stream is replaced within ``patience`` seconds, and the verifier recomputes the sequences. Outputs have
    ``chosen`` tokens, but no logits and hidden states.
    """

    kind: ClassVar[str] = "sliced"
    near_tie: ClassVar[float] = 0.0
    prompt_rows: ClassVar[int] = PROMPT_ROWS

    def __init__(
        self, whole: NativeTarget, cut: pb.Cut, connection: Connection, patience: float, most_draft: int
    ) -> None:
        self.lower, self.cut = whole.part(0, cut.layer), cut.layer
        self.model, self.layers = whole.model, whole.layers
        self.window, self.vocabulary, self.embedding = whole.window, whole.vocabulary, whole.embedding
        self.dtype, self.device = whole.dtype, whole.device
        self._cut, self._connection, self._patience = cut, connection, patience
        self.most_draft = most_draft
        """Maximum tokens of a draft."""
        self._deadline: float | None = None
        """Of the current exchange, after its first break."""
        self._stream: Stream | None = None
        self._numbers: set[int] = set()
        self._ended: list[int] = []
        self._closing = False
        """No more streams are opened."""
        self.total = AnswerCosts()

    @property
    def weights(self) -> Sequence[Any]:
        return self.embedding, self.lower.model.layers

    def unembed(self, hidden: Tensor) -> Tensor:
        raise UserError("the output layer of a sliced model is the verifier's")

    def warm_up(self, tokens: int) -> None:
        """Nothing is compiled lazily."""

    def memory(self, positions: int) -> int:
        return self.lower.model.memory(positions)

    def open(self, features: Sequence[int] = ()) -> SlicedSequence:
        if features:
            raise UserError("a sliced model has no hidden states of upper layers on the edge")
        number = next(number for number in count() if number not in self._numbers)
        self._numbers.add(number)
        return SlicedSequence(self, number)

    def step(self, parts: Sequence[tuple[Any, StepInput]]) -> list[Output]:
        """See ``contracts.Target``. Raises AnswerError if the verifier refuses or is unreachable."""
        began = time.perf_counter()
        rows = [sequence.rows(piece) for sequence, piece in parts]
        hidden = self.lower.step(rows, [token for _, piece in parts for token in piece.tokens])
        states = pack_states(hidden, self._cut.states)
        self._share(parts, edge=time.perf_counter() - began)
        wanted = [part.wanted for part in rows]
        chosen = self._exchange(parts, states, sum(wanted))
        outputs = []
        for (sequence, piece), own in zip(parts, wanted, strict=True):
            tokens, chosen = chosen[:own], chosen[own:]
            outputs.append(Output(torch.empty((own, self.vocabulary), device="meta"), chosen=tokens))
            sequence.computed(piece)
        return outputs

    def ended(self, number: int) -> None:
        """Release the number of an answer. The verifier is told at once if there is no other answer."""
        self._numbers.discard(number)
        self._ended.append(number)
        if not self._numbers and self._stream is not None:
            self._send((), pb.Slice())

    def _exchange(self, parts: Sequence[tuple[SlicedSequence, StepInput]], states: bytes, wanted: int) -> list[int]:
        """Send the rows of ``parts`` and receive their ``wanted`` tokens."""
        self._deadline = None
        self._leave_ended(parts)
        while True:
            try:
                stream = self._stream or self._open()
                for sequence, _ in parts:
                    if sequence.stream is not stream:
                        self._replay(sequence)
                self._send(parts, pb.Slice(states=states, rows=[sequence.message(piece) for sequence, piece in parts]))
                for sequence, _ in parts:
                    sequence.stream = stream
                return self._chosen(parts, stream, wanted) if wanted else []
            except StreamBroken as broken:
                self._recover(parts, str(broken))
            except AnswerError:
                self.close()
                raise

    def _leave_ended(self, parts: Sequence[tuple[SlicedSequence, StepInput]]) -> None:
        """Close a stream that ended before ``parts`` began: it breaks none of their answers."""
        if self._stream is None or any(sequence.stream is self._stream for sequence, _ in parts):
            return
        try:
            if self._stream.receive(wait=False) is not None:
                self.close()
        except StreamBroken:
            self.close()

    def _open(self) -> Stream:
        # ``stop`` either sees this stream, or has set ``_closing``.
        stream = self._stream = self._connection.stream()
        try:
            if self._closing:
                raise AnswerError("the model was closed")
            stream.open(pb.Up(cut=self._cut), self._left)
        except BaseException:
            self.close()
            raise
        self._ended.clear()
        return stream

    def stop(self) -> None:
        """Fail all current answers. Thread-safe."""
        self._closing = True
        if (stream := self._stream) is not None:
            stream.close()

    @property
    def _left(self) -> float:
        """Remaining seconds for the verifier to answer."""
        return self._patience if self._deadline is None else max(self._deadline - time.monotonic(), 0.0)

    def close(self) -> None:
        """End the stream."""
        if self._stream is not None:
            self._stream.close()
        self._stream = None

    def _recover(self, parts: Sequence[tuple[SlicedSequence, StepInput]], reason: str) -> None:
        self.close()
        if self._deadline is None:
            self._deadline = time.monotonic() + self._patience
        else:
            time.sleep(PAUSE)
        try:
            lost = recover(self._open, self._connection, self._left, reason)
        except StreamBroken as broken:
            raise AnswerError(f"no verifier for {self._patience:g} s (patience): {broken}") from broken
        for sequence, _ in parts:
            sequence.counts.add(breaks=1, lost=lost)

    def _replay(self, sequence: SlicedSequence) -> None:
        """Let the verifier recompute a sequence."""
        sequence.forget()
        again = self.lower.model.open()
        try:
            for piece in prompt_chunks(sequence.kept, self.prompt_rows):
                hidden = self.lower.step([Rows(again, len(piece.tokens))], piece.tokens)
                message = sequence.message(replace(piece, last=False))
                self._send([(sequence, piece)], pb.Slice(states=pack_states(hidden, self._cut.states), rows=[message]))
        finally:
            again.close()

    def _send(self, parts: Sequence[tuple[SlicedSequence, StepInput]], message: pb.Slice) -> None:
        assert self._stream is not None
        message.ended[:] = self._ended
        self._ended.clear()
        up = pb.Up(slice=message)
        self._stream.send(up)
        self._share(parts, up=up.ByteSize() + FRAME_BYTES)

    def _chosen(self, parts: Sequence[tuple[SlicedSequence, StepInput]], stream: Stream, wanted: int) -> list[int]:
        down = stream.receive(patience=self._left)
        assert down is not None
        if not down.HasField("chosen"):
            raise refusal(down)
        chosen = down.chosen
        if len(chosen.tokens) != wanted or max(chosen.tokens) >= self.vocabulary:
            raise AnswerError("the verifier sent invalid tokens: use the same version on both sides")
        self._share(parts, down=down.ByteSize() + FRAME_BYTES, work=chosen.micros / MICROS)
        return list(chosen.tokens)

    def _share(self, parts: Sequence[tuple[SlicedSequence, StepInput]], **amounts: float) -> None:
        self.total.add(**amounts)
        rows = sum(len(piece.tokens) for _, piece in parts)
        for sequence, piece in parts:
            share = len(piece.tokens) / rows
            sequence.counts.add(**{name: amount * share for name, amount in amounts.items()})


class SlicedSequence:
    """Implements ``contracts.SequenceState``.

    ``sampling`` must be set before the first step. ``stream``: the one on which the verifier has this sequence.
    """

    sampling: Sampling

    def __init__(self, target: SlicedTarget, number: int) -> None:
        self._target, self._number = target, number
        self._state = target.lower.model.open()
        self.position_limit, self.most_draft = target.window, target.most_draft
        self.kept: list[int] = []
        self.counts = AnswerCosts()
        self.stream: Stream | None = None
        self._begun = False
        self._path: Sequence[int] = ()
        self._tree = TokenTree.chain(0)
        self._closed = False

    def rows(self, piece: StepInput) -> Rows:
        """The rows of ``piece`` in the lower layers."""
        if isinstance(piece, PromptChunk):
            return Rows(self._state, len(piece.tokens), last=piece.last)
        return Rows(self._state, len(piece.tokens), piece.parents)

    def message(self, piece: StepInput) -> pb.Rows:
        """The message for the hidden states of ``piece``."""
        message = pb.Rows(answer=self._number, more=len(piece.tokens) - 1, path=self._path)
        if isinstance(piece, PromptChunk):
            message.kind = pb.PROMPT if piece.last else pb.READ
        else:
            message.kind = pb.TREE
            message.up[:] = parent_offsets(piece)
        if not self._begun:
            # The edge finds stop strings: they are text.
            write_sampling(message.begins, replace(self.sampling, stop=()))
        self._begun, self._path = True, ()
        return message

    def forget(self) -> None:
        """Prepare for a stream on which the verifier does not have this sequence."""
        self._begun, self._path = False, ()

    def computed(self, piece: StepInput) -> None:
        if isinstance(piece, PromptChunk):
            self.kept += piece.tokens
            counts = self.counts
            counts.prefill, counts.work, counts.edge = counts.prefill + counts.work, 0.0, 0.0
        else:
            self._tree = piece

    def commit(self, path: Sequence[int]) -> None:
        self._state.commit(path)
        self._path = path[1:]
        self.kept += [self._tree.tokens[node] for node in path]

    def snapshot(self) -> Any:
        raise NotImplementedError("the verifier's layers cannot go back")

    def restore(self, snapshot: Any) -> None:
        raise NotImplementedError("the verifier's layers cannot go back")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._state.close()
            self._target.ended(self._number)


class SlicedRequest(Request):
    """A request whose tokens are chosen by the verifier."""

    sequence: SlicedSequence

    def open(self) -> None:
        super().open()
        self.sequence.sampling = self.context.sampling

    def set_tree(self, tree: TokenTree) -> None:
        most = self.sequence.most_draft + 1
        if len(tree) > most:
            tree = replace(tree, tokens=tree.tokens[:most], parents=tree.parents[:most])
        super().set_tree(tree)
