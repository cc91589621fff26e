"""EAGLE and Medusa heads in the native library."""

from __future__ import annotations

import ctypes
import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ianvs_specdec.targets.native import interface
from ianvs_specdec.targets.native.model import Model, Rotations
from ianvs_specdec.targets.native.product import Product


class NewPairs(Protocol):
    """New pairs of a sequence: see ``specdec_pairs`` in ``csrc/specdec_heads.h``."""

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def features(self) -> Sequence[Tensor]: ...

    @property
    def rows(self) -> Sequence[int] | None: ...


@dataclass
class Limits:
    """Limits of a draft: maximum ``nodes`` and ``levels``, in trees ``width`` children per node and nodes per level,
    and the minimum log-probability ``least``."""

    nodes: int
    levels: int
    width: int = 1
    least: float = -math.inf


class HeadState:
    """A sequence in a head: its pairs and its current draft."""

    def __init__(self, head: Head) -> None:
        self._head = head  # keeps it alive
        self.length = 0
        self.pointer = head.library.specdec_head_sequence_new(head.pointer)
        if not self.pointer:
            raise MemoryError("not enough memory for another sequence")
        self._free = interface.freed(self, head.library.specdec_head_sequence_free, self.pointer)

    def close(self) -> None:
        """Free the memory. Idempotent."""
        self._free()
        self.pointer = None


class Head:
    """An EAGLE head around ``model``, its layer.

    A token's vector is a row of ``tokens [vocabulary, width]``, to which ``token_norm`` and ``token_product`` are
    applied. See ``specdec_head_config`` in ``csrc/specdec_heads.h`` for ``join``, ``entry`` and the norms.
    ``feature_norm``: weights, and how many numbers are normed together. ``target_ids``: the target's ids of the draft
    vocabulary.
    """

    def __init__(
        self,
        model: Model,
        rotations: Rotations,
        *,
        features: int,
        feature: int,
        tokens: Tensor,
        token_norm: Tensor | None = None,
        token_product: Product | None = None,
        join: Product | None = None,
        entry: Product | None = None,
        feature_norm: tuple[Tensor, int] | None = None,
        before_norm: Tensor | None = None,
        normed: bool = False,
        target_ids: Tensor | None = None,
    ) -> None:
        assert model.unembed is not None
        self.library, self.model, self._rotations = model.library, model, rotations
        self._draft_vocabulary = model.unembed.out
        weights, together = feature_norm or (None, 0)
        norms = [None if norm is None else norm.float().contiguous() for norm in (weights, before_norm)]
        self._parts = (tokens, token_norm, token_product, join, entry, target_ids, norms)

        def address(part: Tensor | Product | None) -> int | None:
            return None if part is None else part.data_ptr() if isinstance(part, Tensor) else part.pointer

        config = interface.HeadConfig(
            interface.VERSION,
            features,
            feature,
            len(tokens),
            self._draft_vocabulary,
            model.pointer,
            address(join),
            address(entry),
            address(tokens),
            interface.KINDS[tokens.dtype],
            tokens.shape[1],
            address(token_norm),
            address(token_product),
            address(target_ids),
            *map(address, norms),
            together,
            normed,
        )
        error = ctypes.c_int32()
        self.pointer = self.library.specdec_head_new(ctypes.byref(config), ctypes.byref(error))
        interface.check(error.value)
        interface.freed(self, self.library.specdec_head_free, self.pointer)

    def open(self) -> HeadState:
        return HeadState(self)

    def read(self, parts: Sequence[tuple[HeadState, NewPairs]], *, logits: bool = True) -> Tensor:
        """Add the pairs of different sequences; returns logits ``[parts, draft vocabulary]`` after the last pair of
        each, or an empty tensor without ``logits``."""
        alive: list[object] = []
        structs = (interface.Pairs * len(parts))(*(_pairs(*part, alive) for part in parts))
        out = torch.empty(len(parts) if logits else 0, self._draft_vocabulary)
        step = self._step(max(state.length + len(pairs.tokens) for state, pairs in parts))
        where = out.data_ptr() if logits else None
        interface.check(self.library.specdec_head_read(self.pointer, step, structs, len(parts), where))
        _kept(parts)
        return out

    def levels(self, parts: Sequence[tuple[HeadState, Tensor, Tensor | None]], depth: int) -> Tensor:
        """Logits ``[rows, draft vocabulary]`` of the next level of several drafts. Of each: its state, tokens, and
        their parents, rows of the level before (None = row 0). ``depth``: maximum depth of the level."""
        structs = (interface.Level * len(parts))(
            *(
                interface.Level(
                    state.pointer, tokens.data_ptr(), None if above is None else above.data_ptr(), len(tokens)
                )
                for state, tokens, above in parts
            )
        )
        out = torch.empty(sum(len(tokens) for _, tokens, _ in parts), self._draft_vocabulary)
        step = self._step(max(state.length for state, _, _ in parts) + depth)
        code = self.library.specdec_head_levels(self.pointer, step, structs, len(parts), out.data_ptr())
        interface.check(code)
        return out

    def chains(self, parts: Sequence[tuple[HeadState, NewPairs, Limits]]) -> list[tuple[list[int], list[int]]]:
        """Add the pairs and draft chains of the likeliest tokens. Returns drafted tokens and their parents, 0 = the
        root, 1 = the first token."""
        return self._drafts(self.library.specdec_head_chains, parts)

    def trees(self, parts: Sequence[tuple[HeadState, NewPairs, Limits]]) -> list[tuple[list[int], list[int]]]:
        """Add the pairs and draft EAGLE-2's dynamic trees; see ``chains``."""
        return self._drafts(self.library.specdec_head_trees, parts)

    def _drafts(
        self, draft: Callable[..., int], parts: Sequence[tuple[HeadState, NewPairs, Limits]]
    ) -> list[tuple[list[int], list[int]]]:
        alive: list[object] = []
        structs = (interface.Draft * len(parts))()
        written, end = [], 0
        for struct, (state, pairs, limits) in zip(structs, parts, strict=True):
            tokens, parents = array("q", bytes(8 * limits.nodes)), array("i", bytes(4 * limits.nodes))
            written.append((tokens, parents))
            struct.pairs = _pairs(state, pairs, alive)
            struct.levels, struct.width, struct.nodes = limits.levels, limits.width, limits.nodes
            struct.least = limits.least
            struct.tokens, struct.parents = tokens.buffer_info()[0], parents.buffer_info()[0]
            end = max(end, state.length + len(pairs.tokens) + limits.levels)
        interface.check(draft(self.pointer, self._step(end), structs, len(parts)))
        _kept([(state, pairs) for state, pairs, _ in parts])
        return [
            (tokens[: struct.drafted].tolist(), parents[: struct.drafted].tolist())
            for struct, (tokens, parents) in zip(structs, written, strict=True)
        ]

    def _step(self, positions: int) -> interface.HeadStep:
        cosine, sine = self._rotations(positions)
        return interface.HeadStep(torch.get_num_threads(), cosine.data_ptr(), sine.data_ptr(), len(cosine))


class ResidualHeads:
    """Medusa heads: a list of residual ``blocks`` and an output per head; see ``specdec_medusa``."""

    def __init__(self, library: ctypes.CDLL, blocks: Sequence[Sequence[Product]], outputs: Sequence[Product]) -> None:
        self._library, self._parts = library, (blocks, outputs)
        self._heads, self._vocabulary = len(outputs), outputs[0].out
        self._blocks = array("Q", [product.pointer for head in blocks for product in head])
        self._outputs = array("Q", [product.pointer for product in outputs])
        self._layers, self._hidden = len(blocks[0]), outputs[0].inputs

    def __len__(self) -> int:
        return self._heads

    def __call__(self, hidden: Tensor, heads: int) -> Tensor:
        """Logits ``[rows, heads, vocabulary]`` of the first ``heads`` heads for float32 hidden states ``[rows,
        hidden]``."""
        hidden = hidden.contiguous()
        logits = torch.empty(len(hidden), heads, self._vocabulary)
        struct = interface.Medusa(
            interface.VERSION,
            heads,
            self._layers,
            self._hidden,
            self._vocabulary,
            self._blocks.buffer_info()[0],
            self._outputs.buffer_info()[0],
        )
        threads = torch.get_num_threads()
        run = self._library.specdec_medusa_run
        interface.check(run(struct, hidden.data_ptr(), len(hidden), logits.data_ptr(), threads))
        return logits

    def likeliest(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and ids ``[..., width]`` of the likeliest tokens of ``logits [..., vocabulary]``."""
        values = torch.empty(*logits.shape[:-1], width)
        places = torch.empty(*logits.shape[:-1], width, dtype=torch.long)
        rows, vocabulary = logits.numel() // logits.shape[-1], logits.shape[-1]
        run = self._library.specdec_likeliest
        code = run(logits.data_ptr(), rows, vocabulary, width, values.data_ptr(), places.data_ptr())
        interface.check(code)
        return values, places


def _pairs(state: HeadState, pairs: NewPairs, alive: list[object]) -> interface.Pairs:
    """The struct; objects that it points to are added to ``alive``."""
    tokens = array("q", pairs.tokens)
    features = [states if _plain(states) else states.float().contiguous() for states in pairs.features]
    places = array("Q", [states.data_ptr() for states in features])
    rows = None if pairs.rows is None else array("i", pairs.rows)
    alive += (tokens, features, places, rows)
    return interface.Pairs(
        state.pointer,
        tokens.buffer_info()[0],
        places.buffer_info()[0],
        None if rows is None else rows.buffer_info()[0],
        len(tokens),
    )


def _plain(states: Tensor) -> bool:
    return states.dtype == torch.float32 and states.is_contiguous()


def _kept(parts: Sequence[tuple[HeadState, NewPairs]]) -> None:
    for state, pairs in parts:
        state.length += len(pairs.tokens)
