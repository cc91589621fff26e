"""``csrc/specdec_heads.h`` for ctypes: its structs and functions, in its order and with its names."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_int32, c_int64, c_void_p

from ianvs_specdec.targets.native.interface import Functions


class HeadConfig(ctypes.Structure):
    """``specdec_head_config``."""

    _fields_ = [
        *((name, c_int32) for name in ("version", "features")),
        *((name, c_int64) for name in ("feature", "vocabulary", "draft_vocabulary")),
        *((name, c_void_p) for name in ("model", "join", "entry", "token")),
        ("token_kind", c_int32),
        ("token_width", c_int64),
        *((name, c_void_p) for name in ("token_norm", "token_product", "target_ids")),
    ]


class HeadStep(ctypes.Structure):
    """``specdec_head_step``."""

    _fields_ = [("threads", c_int32), ("cosine", c_void_p), ("sine", c_void_p), ("positions", c_int64)]


class Pairs(ctypes.Structure):
    """``specdec_pairs``."""

    _fields_ = [*((name, c_void_p) for name in ("sequence", "tokens", "features", "rows")), ("pairs", c_int32)]


class Level(ctypes.Structure):
    """``specdec_level``."""

    _fields_ = [*((name, c_void_p) for name in ("sequence", "tokens", "above")), ("rows", c_int32)]


class Draft(ctypes.Structure):
    """``specdec_draft``."""

    _fields_ = [
        ("pairs", Pairs),
        *((name, c_int32) for name in ("levels", "width", "nodes")),
        ("least", c_double),
        *((name, c_void_p) for name in ("tokens", "parents")),
        ("drafted", c_int32),
    ]


class Medusa(ctypes.Structure):
    """``specdec_medusa``."""

    _fields_ = [
        *((name, c_int32) for name in ("version", "heads", "layers")),
        *((name, c_int64) for name in ("hidden", "vocabulary")),
        *((name, c_void_p) for name in ("blocks", "outputs")),
    ]


FUNCTIONS: Functions = {
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
