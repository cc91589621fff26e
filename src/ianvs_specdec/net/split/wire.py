"""Conversion between the messages of ``split.proto`` and what they stand for. Received data is validated here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from google.protobuf.message import DecodeError, Message
from torch import Tensor

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import build
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.tree import TokenTree
from ianvs_specdec.net.split.split_pb2 import BFLOAT16, DESCRIPTOR, INT8, Draft, Open, States

SERVICE = DESCRIPTOR.services_by_name["Split"].full_name
DESCRIBE, DECODE = f"/{SERVICE}/Describe", f"/{SERVICE}/Decode"
AUTHORIZATION = "authorization"
"""The metadata key of the token, as ``Bearer TOKEN``."""

OPTIONS = (
    # Bandwidth probes and their answers would be a third of all bytes: messages here are far below any window.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.enable_http_proxy", 0),
)
"""Of the channels of both sides."""
MESSAGE_OVERHEAD = 64 << 10
"""Bytes that a message may have besides the tokens of a prompt: stop strings and the like."""
TENTHS = 1e4
"""Of a millisecond in a second: the unit of times in the format."""
TOKEN_BYTES = 5
"""The most that a token id of 32 bits takes."""


M = TypeVar("M", bound=Message)


def parse_message(kind: type[M], data: bytes) -> M | None:
    """None for what is no such message: what to say of it is not for the library to decide."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def encode_draft(tree: TokenTree, ahead: bool = False) -> Draft:
    """The message of a tree's nodes behind its root, without scouts. ``ahead``: that the root comes is a guess."""
    return Draft(tokens=tree.tokens[1:], up=parent_offsets(tree), guess=tree.tokens[0] + 1 if ahead else 0)


def decode_draft(draft: Draft, root: int, most: int) -> TokenTree:
    """The tree of a draft behind ``root``, of its first ``most`` nodes. Raises ``ValueError`` where it makes none."""
    tokens = list(draft.tokens[:most])
    if not draft.up:
        return TokenTree.chain(root, tokens)
    parents = parents_from_offsets(draft.up, len(draft.tokens) + 1)[: len(tokens) + 1]
    return TokenTree([root, *tokens], parents)


def parent_offsets(tree: TokenTree) -> Sequence[int]:
    """How a message has the parents of a tree's nodes behind the root."""
    return () if tree.is_chain else [node - parent for node, parent in enumerate(tree.parents[1:], start=1)]


def parents_from_offsets(up: Sequence[int], nodes: int) -> list[int]:
    """The parents of ``nodes`` nodes, the root's -1 among them. Raises ``ValueError`` where they make no tree."""
    if not up:
        return list(range(-1, nodes - 1))
    if len(up) != nodes - 1:
        raise ValueError(f"{nodes - 1} tokens with {len(up)} parents make no tree")
    parents = [-1, *(node - step for node, step in enumerate(up, start=1))]
    if any(not 0 <= parent < node for node, parent in enumerate(parents[1:], start=1)):
        raise ValueError("a node's parent comes before it in the tree")
    return parents


def node_at(tree: TokenTree, tokens: Sequence[int]) -> int:
    """The node that the path ``tokens`` from the root leads to."""
    nodes = [0]
    for token in tokens:
        nodes = [child for node in nodes for child in tree.children[node] if tree.tokens[child] == token]
    return nodes[0]


def numerics_mismatch(edge: str, verifier: str) -> str:
    """What is wrong where the halves of a sliced model have different numerics."""
    reason = f"the edge computes with {edge or 'numerics it does not name'}, the verifier with {verifier or 'none'}"
    return f"{reason}: use the same dtype, quantization, instruction set and version on both sides"


def write_sampling(message: Open, sampling: Sampling) -> None:
    """Write ``sampling`` into a message. ``logprobs`` are not on offer."""
    message.max_tokens, message.temperature, message.top_p = sampling.max_tokens, sampling.temperature, sampling.top_p
    message.top_k, message.repetition_penalty = sampling.top_k, sampling.repetition_penalty
    message.seed = str(sampling.seed)
    message.stop[:] = sampling.stop


def sampling_of(message: Open) -> Sampling:
    """Raises ``UserError`` for what cannot be sampled with."""
    if len(message.seed) > len(str(1 << 64)) or not message.seed.removeprefix("-").isdecimal():
        raise UserError("the seed must be a 64-bit integer")
    names = ("max_tokens", "temperature", "top_p", "top_k", "repetition_penalty")
    given = {name: getattr(message, name) for name in names}
    return build(Sampling, {**given, "seed": int(message.seed), "stop": tuple(message.stop)})


LARGEST = 127
SCALE_BYTES = 4


def row_bytes(hidden: int, states: States) -> int:
    """Bytes of a row of ``hidden`` numbers."""
    return SCALE_BYTES + hidden if states == INT8 else hidden * (2 if states == BFLOAT16 else 4)


def pack_states(rows: Tensor, states: States) -> bytes:
    """Float32 ``rows [rows, hidden]``. Only FLOAT32 keeps all their bits."""
    if states == BFLOAT16:
        return _bytes(rows.bfloat16().view(torch.int16))
    if states == INT8:
        scales = rows.abs().amax(dim=1, keepdim=True) / LARGEST
        return _bytes(scales) + _bytes((rows / scales.clamp_min(torch.finfo(rows.dtype).tiny)).round().char())
    return _bytes(rows)


def unpack_states(data: bytes, hidden: int, states: States) -> Tensor:
    """Float32 ``[rows, hidden]``. Raises ``ValueError`` where ``data`` is no whole number of rows."""
    count, rest = divmod(len(data), row_bytes(hidden, states))
    if rest:
        raise ValueError(f"{len(data)} bytes are no whole number of hidden states of {hidden} numbers")
    if states == BFLOAT16:
        return torch.from_numpy(np.frombuffer(data, "<i2").copy()).view(torch.bfloat16).float().view(count, hidden)
    if states == INT8:
        scales = np.frombuffer(data, "<f4", count)
        return torch.from_numpy(
            scales[:, None] * np.frombuffer(data, np.int8, offset=SCALE_BYTES * count).reshape(count, hidden)
        )
    return torch.from_numpy(np.frombuffer(data, "<f4").copy()).view(count, hidden)


def _bytes(tensor: Tensor) -> bytes:
    data: bytes = tensor.contiguous().numpy().tobytes()
    return data
