"""ctypes declarations of ``csrc/specdec.h`` and ``specdec_heads.h``, with the same names."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_void_p

import torch

VERSION = 4

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
QUANTIZED = {"int8": 3, "int4": 4}
NONE, LAST, ALL = 0, 1, 2
GATES = {"silu": 0, "gelu_pytorch_tanh": 1}
"""Activations by their name in transformers."""

ERRORS = {
    -1: "another version of the interface",
    -2: "not enough memory",
    -3: "a token that is not in the vocabulary",
    -4: "a position without a rotation",
    -5: "a tree whose parents are not before their children, or a path that is not in it",
    -6: "sizes that do not fit together",
}
NO_MEMORY = -2


class Mlp(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("gate_up", "down")]


class Layer(ctypes.Structure):
    _fields_ = [
        *((f"{name}_norm", c_void_p) for name in ("input", "query", "key", "output", "mlp", "down")),
        *((name, c_void_p) for name in ("qkv", "output", "router")),
        ("mlp", POINTER(Mlp)),
        *((name, c_int32) for name in ("window", "rotation")),
    ]


class Config(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("version", "layers", "hidden", "queries", "keys", "width")),
        *((name, c_int32) for name in ("rotary", "gate", "whole_norms", "experts", "chosen", "normalize_chosen")),
        *((name, c_float) for name in ("epsilon", "embedding_scale", "residual_scale", "logits_scale")),
        *((name, c_float) for name in ("attention_scale", "attention_cap", "logits_cap")),
        ("embedding_kind", c_int32),
        ("vocabulary", c_int64),
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("unembed", c_void_p),
        ("layer", POINTER(Layer)),
    ]


class Part(ctypes.Structure):
    _fields_ = [
        ("sequence", c_void_p),
        ("parents", c_void_p),
        *((name, c_int32) for name in ("rows", "stay", "grow", "logits", "rotation", "ends")),
    ]


class Step(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("version", "threads", "parts", "features")),
        ("part", POINTER(Part)),
        *((name, c_void_p) for name in ("tokens", "input", "qkv_addition", "cosine", "sine")),
        ("positions", c_int64),
        ("rotations", c_int32),
        *((name, c_void_p) for name in ("logits", "feature", "hidden")),
    ]


class HeadConfig(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("version", "features")),
        *((name, c_int64) for name in ("feature", "vocabulary", "draft_vocabulary")),
        *((name, c_void_p) for name in ("model", "join", "entry", "token")),
        ("token_kind", c_int32),
        ("token_width", c_int64),
        *((name, c_void_p) for name in ("token_norm", "token_product", "target_ids", "feature_norm", "before_norm")),
        ("feature_norm_width", c_int64),
        ("normed", c_int32),
    ]


class HeadStep(ctypes.Structure):
    _fields_ = [("threads", c_int32), ("cosine", c_void_p), ("sine", c_void_p), ("positions", c_int64)]


class Pairs(ctypes.Structure):
    _fields_ = [*((name, c_void_p) for name in ("sequence", "tokens", "features", "rows")), ("pairs", c_int32)]


class Level(ctypes.Structure):
    _fields_ = [*((name, c_void_p) for name in ("sequence", "tokens", "above")), ("rows", c_int32)]


class Draft(ctypes.Structure):
    _fields_ = [
        ("pairs", Pairs),
        *((name, c_int32) for name in ("levels", "width", "nodes")),
        ("least", c_double),
        *((name, c_void_p) for name in ("tokens", "parents")),
        ("drafted", c_int32),
    ]


class Medusa(ctypes.Structure):
    _fields_ = [
        *((name, c_int32) for name in ("version", "heads", "layers")),
        *((name, c_int64) for name in ("hidden", "vocabulary")),
        *((name, c_void_p) for name in ("blocks", "outputs")),
    ]


def freed(owner: object, free: Callable[[int], None], pointer: int) -> weakref.finalize[..., object]:
    """A finalizer that frees ``pointer`` when called or when ``owner`` is collected, but not at exit, since a thread
    may still be using it."""
    finalizer = weakref.finalize(owner, free, pointer)
    finalizer.atexit = False
    return finalizer


FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "version": (c_int32, []),
    "sources": (c_char_p, []),
    "variant": (c_char_p, []),
    "product_new": (c_void_p, [c_int32, c_int32, c_void_p, c_int64, c_int64, c_void_p]),
    "product_free": (None, [c_void_p]),
    "product_bytes": (c_int64, [c_void_p]),
    "product_run": (c_int32, [c_void_p, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int32, c_int32]),
    "model_new": (c_void_p, [POINTER(Config), POINTER(c_int32)]),
    "model_free": (None, [c_void_p]),
    "page_bytes": (c_int64, [c_void_p]),
    "page_positions": (c_int32, []),
    "model_memory": (c_int64, [c_void_p]),
    "sequence_new": (c_void_p, [c_void_p]),
    "sequence_free": (None, [c_void_p]),
    "sequence_length": (c_int64, [c_void_p]),
    "sequence_commit": (c_int32, [c_void_p, c_void_p, c_int32]),
    "sequence_restore": (c_int32, [c_void_p, c_int64]),
    "model_step": (c_int32, [c_void_p, POINTER(Step)]),
    "head_new": (c_void_p, [POINTER(HeadConfig), POINTER(c_int32)]),
    "head_free": (None, [c_void_p]),
    "head_sequence_new": (c_void_p, [c_void_p]),
    "head_sequence_free": (None, [c_void_p]),
    "head_read": (c_int32, [c_void_p, POINTER(HeadStep), POINTER(Pairs), c_int32, c_void_p]),
    "head_levels": (c_int32, [c_void_p, POINTER(HeadStep), POINTER(Level), c_int32, c_void_p]),
    "head_chains": (c_int32, [c_void_p, POINTER(HeadStep), POINTER(Draft), c_int32]),
    "head_trees": (c_int32, [c_void_p, POINTER(HeadStep), POINTER(Draft), c_int32]),
    "medusa_run": (c_int32, [POINTER(Medusa), c_void_p, c_int64, c_void_p, c_int32]),
    "likeliest": (c_int32, [c_void_p, c_int64, c_int64, c_int32, c_void_p, c_void_p]),
}
"""Result and argument types, by the name without ``specdec_``."""


def declare(library: ctypes.CDLL) -> None:
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, f"specdec_{name}")
        function.restype, function.argtypes = result, arguments


def check(code: int) -> None:
    """Raise ``MemoryError`` or ``ValueError`` for an error code."""
    if code == NO_MEMORY:
        raise MemoryError("not enough memory for this step: ask for fewer requests at once or shorter prompts")
    if code:
        raise ValueError(f"the native step was given {ERRORS.get(code, f'something wrong ({code})')}")
