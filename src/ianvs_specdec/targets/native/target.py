"""Llama, Mistral, Qwen2 and Qwen3 in the native step: many sequences at once, without rounding that depends on them.

Whatever a row is computed beside (other sequences, siblings in a tree, the rest of a prompt), on one thread or more,
its logits and hidden states have the same bits. So drafts never change what greedy decoding writes, in any type of
weights.
This holds for one instruction set: another one rounds differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ianvs_specdec.engine.contracts import Output, Piece, Prompt
from ianvs_specdec.models.rotary import window_of
from ianvs_specdec.targets.fit import FAMILIES, agrees, is_plain, rotations
from ianvs_specdec.targets.native import interface, library
from ianvs_specdec.targets.native.model import ALL, LAST, NONE, POSITIONS_AT_ONCE, Layer, Model, Parts, Rotations
from ianvs_specdec.targets.native.product import Product

PROMPT_ROWS = 256
"""Rows from which a product gains little from more of them; a longer piece would only make others wait."""


class NativeTarget:
    """Implements ``contracts.Target`` for a loaded ``transformers`` model that ``fits_native``.

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
        stack = [self._packed(layer, consume) for layer in model.model.layers]
        head = model.get_output_embeddings()
        last = "int8" if quantization == "int4" else quantization
        self.unembed = Product(self._library, head.weight, head.bias, last)
        if consume and head.weight is not model.get_input_embeddings().weight:
            head.weight.data = head.weight.data.new_empty(0)
        queries: int = config.num_attention_heads
        self.native = Model(
            self._library,
            stack,
            queries=queries,
            keys=config.num_key_value_heads,
            width=getattr(config, "head_dim", None) or config.hidden_size // queries,
            epsilon=config.rms_norm_eps,
            embedding=self.embedding,
            final_norm=model.model.norm.weight,
            unembed=self.unembed,
        )
        self._rotations = Rotations(self._block)

    @property
    def weights(self) -> Sequence[Any]:
        return self.embedding, self.native.layers, self.unembed, list(self.model.parameters())

    def warm(self, tokens: int) -> None:
        """Nothing is compiled when it is first used."""

    def memory(self, positions: int) -> int:
        return self.native.memory(positions)

    def open(self, features: Sequence[int] = ()) -> NativeSequence:
        return NativeSequence(self, tuple(index % (self.layers + 1) for index in features))

    def step(self, parts: Sequence[tuple[Any, Piece]]) -> list[Output]:
        """See ``contracts.Target``. Raises ``ValueError`` for a token that the model does not have, and
        ``MemoryError``; no sequence has changed then."""
        given, end = Parts(), 0
        tokens: list[int] = []
        wanted: set[int] = set()
        for sequence, piece in parts:
            rows = len(piece.tokens)
            tokens += piece.tokens
            wanted.update(sequence.features)
            end = max(end, sequence.length + rows)
            ends = self.layers in sequence.features
            if isinstance(piece, Prompt):
                given.add(sequence.state, rows, stay=True, logits=LAST if piece.last else NONE, ends=ends)
            else:
                given.add(sequence.state, rows, piece.parents, logits=ALL, ends=ends)
        features = sorted(wanted)
        logits, hidden = self.native.step(given, self._rotations(end), tokens=tokens, features=features)
        return self._outputs(parts, logits, dict(zip(features, hidden, strict=True)))

    def _outputs(self, parts: Sequence[tuple[Any, Piece]], logits: Tensor, hidden: dict[int, Tensor]) -> list[Output]:
        outputs, row, logits_row = [], 0, 0
        for sequence, piece in parts:
            rows = len(piece.tokens)
            with_logits = rows
            if isinstance(piece, Prompt):
                sequence.length += rows
                with_logits = int(piece.last)
            kept = tuple(hidden[index][row : row + rows] for index in sequence.features)
            outputs.append(Output(logits[logits_row : logits_row + with_logits], kept))
            row, logits_row = row + rows, logits_row + with_logits
        return outputs

    def _packed(self, layer: Any, consume: bool) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        packed = Layer(
            self._product([attention.q_proj, attention.k_proj, attention.v_proj]),
            self._product([attention.o_proj]),
            self._product([mlp.gate_proj, mlp.up_proj]),
            self._product([mlp.down_proj]),
            layer.post_attention_layernorm.weight,
            layer.input_layernorm.weight,
            attention.q_norm.weight if hasattr(attention, "q_norm") else None,
            attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        )
        if consume:
            for module in (*_projections(attention), *_projections(mlp)):
                module.weight.data = module.weight.data.new_empty(0)
        return packed

    def _product(self, modules: Sequence[torch.nn.Linear]) -> Product:
        """One product for all ``modules``."""
        weight = torch.cat([module.weight.detach() for module in modules])
        biases = [module.bias.detach() for module in modules if module.bias is not None]
        return Product(self._library, weight, torch.cat(biases) if biases else None, self.quantization)

    def _block(self, start: int) -> tuple[Tensor, Tensor]:
        block = rotations(self.model, POSITIONS_AT_ONCE, start)
        return block.real, block.imag


class NativeSequence:
    """Implements ``contracts.SequenceState``; ``features`` are indices from 0 to the number of layers."""

    def __init__(self, target: NativeTarget, features: tuple[int, ...]) -> None:
        self.features = features
        self.length = 0
        self.reach = target.window
        self.state = target.native.open()

    def commit(self, path: Sequence[int]) -> None:
        self.state.commit(path)
        self.length += len(path)

    def snapshot(self) -> int:
        return self.length

    def restore(self, snapshot: int) -> None:
        self.state.restore(snapshot)
        self.length = snapshot

    def close(self) -> None:
        self.state.close()


def fits_native(model: Any) -> str | None:
    """Why ``NativeTarget`` cannot compute ``model``, a ``transformers`` causal LM; None if it can."""
    if model.device.type != "cpu":
        return f"the native step runs on a CPU, and the model is on {model.device}"
    if not is_plain(model):
        return f"the native step computes {', '.join(FAMILIES)} as transformers builds them, and this model is another"
    dtypes = {parameter.dtype for parameter in model.parameters()}
    if len(dtypes) != 1 or not dtypes <= interface.KINDS.keys():
        return f"the native step computes weights of one type, {', '.join(map(_name, interface.KINDS))}"
    if not agrees(model, NativeTarget):
        return "a layer of this model computes something else than its configuration says"
    return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _projections(module: torch.nn.Module) -> list[Any]:
    return [child for child in module.children() if isinstance(child, torch.nn.Linear)]
