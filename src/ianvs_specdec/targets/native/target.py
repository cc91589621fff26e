"""The families that are described, in the native step: many sequences at once, without rounding that depends on them.

Whatever a row is computed beside (other sequences, siblings in a tree, the rest of a prompt), on one thread or more,
its logits and hidden states have the same bits. So drafts never change what greedy decoding writes, in any type of
weights.
This holds for one instruction set: another one rounds differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine.contracts import Output, PromptChunk, StepInput, prompt_chunks
from ianvs_specdec.engine.tree import TokenTree
from ianvs_specdec.models.rotary import window_of
from ianvs_specdec.targets.compatibility import agrees
from ianvs_specdec.targets.native import interface, library
from ianvs_specdec.targets.native.build import fingerprint
from ianvs_specdec.targets.native.layer_range import LayerRange
from ianvs_specdec.targets.native.model import ALL, LAST, NONE, Features, Model, Parts, Rotations
from ianvs_specdec.targets.native.packing import (
    Packer,
    description_of,
    features_of,
    rotations_of,
    unsupported_config_reason,
)
from ianvs_specdec.targets.native.product import Product

PROMPT_ROWS = 256
"""Rows from which a product gains little from more of them; a longer piece would only make others wait."""


class NativeTarget:
    """Implements ``contracts.Target`` for a loaded ``transformers`` model that ``native_unsupported_reason``.

    Weights are copied. With ``consume`` the model gives up its own copy layer by layer and must not be used for
    anything else afterwards. ``quantization`` rounds the products' weights to 8 or 4 bits (with ``"int4"`` those of the
    output embedding to 8); ``variant`` names an instruction set other than the best.
    """

    kind: ClassVar[str] = "native"
    near_tie: ClassVar[float] = 0.0
    prompt_rows: ClassVar[int] = PROMPT_ROWS

    def __init__(
        self,
        model: Any,
        *,
        consume: bool = False,
        quantization: str | None = None,
        variant: str | None = None,
    ) -> None:
        self.model = model.eval()
        self.config = config = model.config.get_text_config()
        self.quantization = quantization
        self.window: int | None = window_of(config)
        self.layers: int = config.num_hidden_layers
        self.embedding: Tensor = model.get_input_embeddings().weight.detach().contiguous()
        self.vocabulary = len(self.embedding)
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self._library = library.load(variant)
        self.numerics = numerics(self.dtype, quantization, variant)
        described = description_of(model)
        self.switch_length = described.switch_length
        packer = Packer(self._library, described, quantization, consume)
        stack = list(map(packer.layer, model.model.layers, described.layers))
        head = model.get_output_embeddings()
        last = "int8" if quantization == "int4" else quantization
        self.unembed = Product(self._library, head.weight, head.bias, last)
        if consume and head.weight is not model.get_input_embeddings().weight:
            head.weight.data = head.weight.data.new_empty(0)
        queries: int = config.num_attention_heads
        self._rotations = Rotations(rotations_of(model, described))
        rotary = 2 * self._rotations(1)[0].shape[-1]
        self._features = features = features_of(model, described, rotary)
        # What drafters that use `unembed` have to do with its logits, see `finish`.
        self.logits_features = Features(logits_scale=features.logits_scale, logits_cap=features.logits_cap)
        self._stack, self._final_norm = stack, packer.norm(model.model.norm)
        self._sizes = {
            "queries": queries,
            "keys": config.num_key_value_heads,
            "width": getattr(config, "head_dim", None) or config.hidden_size // queries,
            "epsilon": config.rms_norm_eps,
        }
        self.native = self._model(0, self.layers)

    def part(self, first: int, last: int) -> LayerRange:
        """The layers from ``first`` to before ``last``, with these weights. What is given to one and taken from the
        other of two that follow each other has the bits that it has in the whole model. Raises ``UserError`` for a
        model that computes all positions anew at a length."""
        if self.switch_length is not None:
            raise UserError(
                "this model's rotations change with the length of a sequence: it cannot be sliced", key="cut"
            )
        return LayerRange(self._model(first, last), self._rotations, first)

    def layer_seconds(self) -> float:
        """What one layer adds to a step of one row, measured."""
        one, most = (self.part(0, layers).seconds() for layers in (1, self.layers))
        return max(most - one, 0.0) / max(self.layers - 1, 1)

    def _model(self, first: int, last: int) -> Model:
        begins, ends = first == 0, last == self.layers
        return Model(
            self._library,
            self._stack[first:last],
            embedding=self.embedding if begins else None,
            final_norm=self._final_norm if ends else None,
            unembed=self.unembed if ends else None,
            features=self._features if begins else replace(self._features, embedding_scale=1.0),
            **self._sizes,
        )

    @property
    def weights(self) -> Sequence[Any]:
        return self.embedding, self.native.layers, self.unembed, list(self.model.parameters())

    def finish(self, logits: Tensor) -> None:
        """Scale and cap ``logits [rows, vocabulary]`` of ``unembed``, in place, as the model does."""
        logits *= self.logits_features.logits_scale
        if most := self.logits_features.logits_cap:
            # One by one: how torch rounds depends on a tensor's size.
            for own in logits:
                own.div_(most).tanh_().mul_(most)

    def warm_up(self, tokens: int) -> None:
        """Nothing is compiled when it is first used."""

    def memory(self, positions: int) -> int:
        return self.native.memory(positions)

    def open(self, features: Sequence[int] = ()) -> NativeSequence:
        return NativeSequence(self, tuple(index % (self.layers + 1) for index in features))

    def step(self, parts: Sequence[tuple[Any, StepInput]]) -> list[Output]:
        """See ``contracts.Target``. Raises ``ValueError`` for a token that the model does not have, and
        ``MemoryError``; no sequence has changed then."""
        early = [self._turn(sequence, piece) for sequence, piece in parts]
        outputs = self._compute(parts)
        return list(map(_joined, early, outputs))

    def _compute(self, parts: Sequence[tuple[Any, StepInput]]) -> list[Output]:
        given, end = Parts(), 0
        tokens: list[int] = []
        wanted: set[int] = set()
        for sequence, piece in parts:
            rows = len(piece.tokens)
            tokens += piece.tokens
            wanted.update(sequence.features)
            end = max(end, sequence.length + rows)
            ends = self.layers in sequence.features
            turned = sequence.rotation
            if isinstance(piece, PromptChunk):
                logits_of = LAST if piece.last else NONE
                given.add(sequence.state, rows, stay=True, logits=logits_of, ends=ends, rotation=turned)
            else:
                given.add(sequence.state, rows, piece.parents, logits=ALL, ends=ends, rotation=turned)
        features = sorted(wanted)
        logits, hidden = self.native.step(given, self._rotations(end), tokens=tokens, features=features)
        return self._outputs(parts, logits, dict(zip(features, hidden, strict=True)))

    def _outputs(
        self, parts: Sequence[tuple[Any, StepInput]], logits: Tensor, hidden: dict[int, Tensor]
    ) -> list[Output]:
        outputs, row, logits_row = [], 0, 0
        for sequence, piece in parts:
            rows = len(piece.tokens)
            with_logits = rows
            sequence.computed(piece)
            if isinstance(piece, PromptChunk):
                with_logits = int(piece.last)
            kept = tuple(hidden[index][row : row + rows] for index in sequence.features)
            outputs.append(Output(logits[logits_row : logits_row + with_logits], kept))
            row, logits_row = row + rows, logits_row + with_logits
        return outputs

    def _turn(self, sequence: NativeSequence, piece: StepInput) -> Early | None:
        """Give a sequence the rotations of the length that it will have. Where some nodes of a tree have those of
        before, they are computed here."""
        if self.switch_length is None:
            return None
        ends = [len(piece.tokens)] if isinstance(piece, PromptChunk) else [depth + 1 for depth in piece.depths]
        late = [sequence.length + end > self.switch_length for end in ends]
        early = None
        if any(late) and not all(late):
            self._compute_anew(sequence, 0)
            early = Early(self._compute([(sequence, piece)])[0], torch.tensor(late))
        self._compute_anew(sequence, int(any(late)))
        return early

    def _compute_anew(self, sequence: NativeSequence, rotation: int) -> None:
        """What a sequence holds, as transformers does where all positions get other rotations."""
        if rotation == sequence.rotation:
            return
        # Where a step fails, the next one begins anew.
        sequence.rotation = None
        sequence.state.restore(0)
        for piece in prompt_chunks(sequence.kept, self.prompt_rows):
            given = Parts()
            given.add(sequence.state, len(piece.tokens), stay=True, logits=NONE, rotation=rotation)
            self.native.step(given, self._rotations(len(sequence.kept)), tokens=piece.tokens)
        sequence.rotation = rotation


@dataclass
class Early:
    """What came of a tree with the rotations of a short sequence, and which of its nodes ``[nodes]`` have others."""

    output: Output
    late: Tensor


def _joined(early: Early | None, output: Output) -> Output:
    """Each node with the rotations of its own length."""
    if early is None:
        return output
    late = early.late[:, None]
    hidden = zip(early.output.hidden, output.hidden, strict=True)
    logits = torch.where(late, output.logits, early.output.logits)
    return Output(logits, tuple(torch.where(late, long, short) for short, long in hidden))


class NativeSequence:
    """Implements ``contracts.SequenceState``; ``features`` are indices from 0 to the number of layers."""

    def __init__(self, target: NativeTarget, features: tuple[int, ...]) -> None:
        self.features = features
        self.length = 0
        self.rotation: int | None = 0
        self.state = target.native.open()
        self.kept: list[int] = []
        self.position_limit = target.window
        self._tree = TokenTree.chain(0)

    def computed(self, piece: StepInput) -> None:
        """``piece`` was computed behind what stays."""
        if isinstance(piece, PromptChunk):
            self.length += len(piece.tokens)
            self.kept += piece.tokens
        else:
            self._tree = piece

    def commit(self, path: Sequence[int]) -> None:
        self.state.commit(path)
        self.length += len(path)
        self.kept += [self._tree.tokens[node] for node in path]

    def snapshot(self) -> int:
        return self.length

    def restore(self, snapshot: int) -> None:
        # It holds less where computing anew has failed.
        self.state.restore(min(snapshot, len(self.state)))
        self.length = snapshot
        del self.kept[snapshot:]

    def close(self) -> None:
        self.state.close()


def numerics(dtype: torch.dtype, quantization: str | None = None, variant: str | None = None) -> str:
    """What decides how a step rounds."""
    instructions = variant or library.best()
    return f"{_name(dtype)}, {quantization or 'not quantized'}, {instructions}, native step {fingerprint()}"


def native_unsupported_reason(model: Any) -> str | None:
    """Why ``NativeTarget`` cannot compute ``model``, a ``transformers`` causal LM; None if it can."""
    if model.device.type != "cpu":
        return f"the native step runs on a CPU, and the model is on {model.device}"
    if (reason := unsupported_config_reason(model)) is not None:
        return reason
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) != 1 or not dtypes <= interface.KINDS.keys():
        return f"the native step computes weights of one type, {', '.join(map(_name, interface.KINDS))}"
    if not agrees(model, NativeTarget):
        return "a layer of this model computes something else than its configuration says"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
