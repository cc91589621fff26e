"""A model in the native library: weights, sequences and steps."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.targets.native import interface
from ianvs_specdec.targets.native.product import Product

ALL, LAST, NONE = interface.ALL, interface.LAST, interface.NONE
POSITIONS_AT_ONCE = 512
"""Block size of the computation of rotations. It is constant, so that their bits do not depend on other positions."""


class Rotations:
    """Cosines and sines of rotary embeddings, float32 ``[kinds, positions, rotary / 2]`` each, or without the first
    dimension. ``make(start)`` computes ``POSITIONS_AT_ONCE`` positions."""

    def __init__(self, make: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self._make = make
        cosine, sine = make(0)
        self._made = cosine.contiguous(), sine.contiguous()

    def __call__(self, positions: int) -> tuple[Tensor, Tensor]:
        # Read once, since other threads may replace it.
        made = self._made
        have = made[0].shape[-2]
        if positions > have:
            starts = range(have, max(positions, 2 * have), POSITIONS_AT_ONCE)
            cosines, sines = zip(made, *map(self._make, starts), strict=True)
            made = self._made = torch.cat(cosines, dim=-2), torch.cat(sines, dim=-2)
        return made


@dataclass
class Layer:
    """One decoder layer: see ``specdec_layer`` in ``csrc/specdec.h``. With a ``router``, ``gate_up`` and ``down`` are
    lists of experts. ``window`` None = all positions, ``rotation`` None = none."""

    qkv: Product
    output: Product
    gate_up: Product | list[Product]
    down: Product | list[Product]
    mlp_norm: Tensor | None = None
    input_norm: Tensor | None = None
    query_norm: Tensor | None = None
    key_norm: Tensor | None = None
    output_norm: Tensor | None = None
    down_norm: Tensor | None = None
    router: Product | None = None
    window: int | None = None
    rotation: int | None = 0

    @property
    def mlps(self) -> list[tuple[Product, Product]]:
        """Gate-and-up and down products, one pair per expert."""
        if isinstance(self.gate_up, list) and isinstance(self.down, list):
            return list(zip(self.gate_up, self.down, strict=True))
        assert isinstance(self.gate_up, Product)
        assert isinstance(self.down, Product)
        return [(self.gate_up, self.down)]


@dataclass(frozen=True)
class Features:
    """Differences from Llama: see ``specdec_config`` in ``csrc/specdec.h``. None: as in Llama."""

    rotary: int | None = None
    gate: str = "silu"
    whole_norms: bool = False
    experts: int = 0
    chosen: int = 0
    normalize_chosen: bool = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logits_scale: float = 1.0
    attention_scale: float | None = None
    attention_cap: float | None = None
    logits_cap: float | None = None


@dataclass
class Parts:
    """The parts of a step: ``add`` one per sequence, then call ``Model.step``."""

    structs: list[interface.Part] = field(default_factory=list)
    rows: int = 0
    logits_rows: int = 0
    _alive: list[Any] = field(default_factory=list)

    def add(
        self,
        sequence: State,
        rows: int,
        parents: Sequence[int] | None = None,
        *,
        stay: bool = False,
        grow: bool = False,
        logits: int = ALL,
        ends: bool = False,
        rotation: int = 0,
    ) -> None:
        """See ``specdec_part`` in ``csrc/specdec.h``."""
        kept = None if parents is None else array("i", parents)
        where = None if kept is None else kept.buffer_info()[0]
        self._alive += (sequence, kept)
        self.structs.append(interface.Part(sequence.pointer, where, rows, stay, grow, logits, rotation, ends))
        self.rows += rows
        self.logits_rows += (0, 1, rows)[logits]


class Model:
    """A model in the native library. Keeps references to layers, norms and the embedding."""

    def __init__(
        self,
        library: ctypes.CDLL,
        layers: Sequence[Layer],
        *,
        queries: int,
        keys: int,
        width: int,
        epsilon: float,
        embedding: Tensor | None = None,
        final_norm: Tensor | None = None,
        unembed: Product | None = None,
        features: Features | None = None,
    ) -> None:
        self.library, self.unembed = library, unembed
        self.layers = list(layers)
        self.hidden, self.width = layers[0].qkv.inputs, width
        self._embedding = embedding
        self._norms: list[Tensor] = []
        features = features or Features()
        structs = (interface.Layer * len(layers))(*map(self._struct, layers))
        config = interface.Config(
            interface.VERSION,
            len(layers),
            self.hidden,
            queries,
            keys,
            width,
            width if features.rotary is None else features.rotary,
            interface.GATES[features.gate],
            features.whole_norms,
            features.experts,
            features.chosen,
            features.normalize_chosen,
            epsilon,
            features.embedding_scale,
            features.residual_scale,
            features.logits_scale,
            width**-0.5 if features.attention_scale is None else features.attention_scale,
            features.attention_cap or 0.0,
            features.logits_cap or 0.0,
            0 if embedding is None else interface.KINDS[embedding.dtype],
            0 if embedding is None else len(embedding),
            None if embedding is None else embedding.data_ptr(),
            self._norm(final_norm),
            None if unembed is None else unembed.pointer,
            structs,
        )
        error = ctypes.c_int32()
        self.pointer = library.specdec_model_new(ctypes.byref(config), ctypes.byref(error))
        interface.check(error.value)
        self._free = interface.freed(self, library.specdec_model_free, self.pointer)
        self._page_bytes: int = library.specdec_page_bytes(self.pointer)
        self._page_positions: int = library.specdec_page_positions()
        self._run = library.specdec_model_step

    def memory(self, positions: int) -> int:
        return -(-positions // self._page_positions) * self._page_bytes

    @property
    def pages_bytes(self) -> int:
        """Bytes of all pages of keys and values, including those of closed sequences, which are reused."""
        return int(self.library.specdec_model_memory(self.pointer))

    def open(self) -> State:
        return State(self)

    def step(
        self,
        parts: Parts,
        rotations: tuple[Tensor, Tensor],
        *,
        tokens: Sequence[int] | None = None,
        rows: Tensor | None = None,
        qkv_addition: Tensor | None = None,
        features: Sequence[int] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        """Logits ``[rows with logits, vocabulary]`` and for each of ``features`` the hidden states ``[rows, hidden]``.

        ``rotations``: see ``Rotations``. Input: ``tokens`` or float32 ``rows [rows, hidden]`` of all parts, in order.
        """
        cosine, sine = rotations
        ids = None if tokens is None else array("q", tokens)
        logits = torch.empty(parts.logits_rows, 0 if self.unembed is None else self.unembed.out)
        hidden = [torch.empty(parts.rows, self.hidden) for _ in features]
        wanted = array("i", features)
        places = array("Q", [tensor.data_ptr() for tensor in hidden])
        step = interface.Step(
            interface.VERSION,
            torch.get_num_threads(),
            len(parts.structs),
            len(wanted),
            (interface.Part * len(parts.structs))(*parts.structs),
            None if ids is None else ids.buffer_info()[0],
            None if rows is None else rows.data_ptr(),
            None if qkv_addition is None else qkv_addition.data_ptr(),
            cosine.data_ptr(),
            sine.data_ptr(),
            cosine.shape[-2],
            len(cosine) if cosine.ndim == 3 else 1,
            logits.data_ptr(),
            wanted.buffer_info()[0],
            places.buffer_info()[0],
        )
        code = self._run(self.pointer, step)
        if code:
            interface.check(code)
        return logits, hidden

    def _struct(self, layer: Layer) -> interface.Layer:
        before = (layer.input_norm, layer.query_norm, layer.key_norm)
        norms = [self._norm(norm) for norm in (*before, layer.output_norm, layer.mlp_norm, layer.down_norm)]
        mlps = [interface.Mlp(gate_up.pointer, down.pointer) for gate_up, down in layer.mlps]
        return interface.Layer(
            *norms,
            layer.qkv.pointer,
            layer.output.pointer,
            None if layer.router is None else layer.router.pointer,
            (interface.Mlp * len(mlps))(*mlps),
            layer.window or 0,
            -1 if layer.rotation is None else layer.rotation,
        )

    def _norm(self, norm: Tensor | None) -> int | None:
        if norm is None:
            return None
        self._norms.append(norm.detach().float().contiguous())
        return self._norms[-1].data_ptr()


class State:
    """Keys and values of one sequence: committed positions and the current tree."""

    def __init__(self, model: Model) -> None:
        self._model = model  # keeps it alive
        self._library = model.library
        pointer = model.library.specdec_sequence_new(model.pointer)
        if not pointer:
            raise MemoryError("not enough memory for another sequence")
        self._pointer: int | None = pointer
        self._free = interface.freed(self, model.library.specdec_sequence_free, pointer)

    @property
    def pointer(self) -> int:
        """Raises ``ValueError`` if the sequence is closed."""
        if self._pointer is None:
            raise ValueError("this sequence is closed")
        return self._pointer

    def __len__(self) -> int:
        return int(self._library.specdec_sequence_length(self.pointer))

    def commit(self, path: Sequence[int]) -> None:
        """Commit the nodes of the tree on ``path``, drop the others."""
        nodes = array("i", path)
        interface.check(self._library.specdec_sequence_commit(self.pointer, nodes.buffer_info()[0], len(nodes)))

    def restore(self, length: int) -> None:
        """Drop the tree and all positions from ``length`` on."""
        interface.check(self._library.specdec_sequence_restore(self.pointer, length))

    def close(self) -> None:
        """Free the memory. Idempotent."""
        self._pointer = None
        self._free()
