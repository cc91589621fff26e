"""Encoding and decoding of the messages of ``split.proto``. Received data is validated here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from google.protobuf.message import DecodeError, Message
from torch import Tensor

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import validated
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.tree import TokenTree
from ianvs_specdec.net.split.split_pb2 import BFLOAT16, DESCRIPTOR, INT8, Draft, Open, States

SERVICE = DESCRIPTOR.services_by_name["Split"].full_name
DESCRIBE, DECODE = f"/{SERVICE}/Describe", f"/{SERVICE}/Decode"
AUTHORIZATION = "authorization"
"""Metadata key of the token, whose value is ``Bearer TOKEN``."""
OPTIONS = (
    # Bandwidth probes would be a third of all bytes, and messages are far smaller than any window.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.enable_http_proxy", 0),
)
"""gRPC channel options of both sides."""
MESSAGE_OVERHEAD = 64 << 10
"""Bytes of a message without its tokens, such as stop strings."""
TENTHS = 1e4
"""Times in messages: tenths of a millisecond."""
TOKEN_BYTES = 5
"""Maximum size of a token id."""
MAX_INT8 = 127
"""Largest absolute value of quantized states."""
SCALE_BYTES = 4

M = TypeVar("M", bound=Message)


def parse_message(kind: type[M], data: bytes) -> M | None:
    """Decode a message, None if invalid."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def encode_draft(tree: TokenTree, ahead: bool = False) -> Draft:
    """The message for a tree, without its root and scouts. ``ahead``: the root is a guess."""
    return Draft(tokens=tree.tokens[1:], up=parent_offsets(tree), guess=tree.tokens[0] + 1 if ahead else 0)


def decode_draft(draft: Draft, root: int, most: int) -> TokenTree:
    """The first ``most`` nodes of a draft as a tree with the given root. Raises ``ValueError`` if it is no tree."""
    tokens = list(draft.tokens[:most])
    if not draft.up:
        return TokenTree.chain(root, tokens)
    parents = parents_from_offsets(draft.up, len(draft.tokens) + 1)[: len(tokens) + 1]
    return TokenTree([root, *tokens], parents)


def parent_offsets(tree: TokenTree) -> Sequence[int]:
    """Per node after the root, the distance to its parent; empty for chains."""
    return () if tree.is_chain else [node - parent for node, parent in enumerate(tree.parents[1:], start=1)]


def parents_from_offsets(up: Sequence[int], nodes: int) -> list[int]:
    """The parents of ``nodes`` nodes, -1 for the root. Raises ``ValueError`` if they form no tree."""
    if not up:
        return list(range(-1, nodes - 1))
    if len(up) != nodes - 1:
        raise ValueError(f"{nodes - 1} tokens with {len(up)} parents do not form a tree")
    parents = [-1, *(node - step for node, step in enumerate(up, start=1))]
    if any(not 0 <= parent < node for node, parent in enumerate(parents[1:], start=1)):
        raise ValueError("a node's parent comes before it in the tree")
    return parents


def node_at(tree: TokenTree, tokens: Sequence[int]) -> int:
    """The node at the end of the path ``tokens`` from the root."""
    nodes = [0]
    for token in tokens:
        nodes = [child for node in nodes for child in tree.children[node] if tree.tokens[child] == token]
    return nodes[0]


def numerics_mismatch(edge: str, verifier: str) -> str:
    """Error message for parts of a sliced model with different numerics."""
    reason = f"the edge computes with {edge or 'unknown numerics'}, the verifier with {verifier or 'unknown ones'}"
    return f"{reason}: use the same dtype, quantization, instruction set and version on both sides"


def write_sampling(message: Open, sampling: Sampling) -> None:
    """Write ``sampling``, except ``logprobs``, into a message."""
    message.max_tokens, message.temperature, message.top_p = sampling.max_tokens, sampling.temperature, sampling.top_p
    message.top_k, message.repetition_penalty = sampling.top_k, sampling.repetition_penalty
    message.seed = str(sampling.seed)
    message.stop[:] = sampling.stop


def read_sampling(message: Open) -> Sampling:
    """Raises ``UserError`` for invalid parameters."""
    if len(message.seed) > len(str(1 << 64)) or not message.seed.removeprefix("-").isdecimal():
        raise UserError("the seed must be a 64-bit integer")
    names = ("max_tokens", "temperature", "top_p", "top_k", "repetition_penalty")
    given = {name: getattr(message, name) for name in names}
    return validated(Sampling, {**given, "seed": int(message.seed), "stop": tuple(message.stop)})


def row_bytes(hidden: int, states: States) -> int:
    """Bytes of one row of hidden states."""
    return SCALE_BYTES + hidden if states == INT8 else hidden * (2 if states == BFLOAT16 else 4)


def pack_states(rows: Tensor, states: States) -> bytes:
    """Encode float32 ``rows [rows, hidden]`` as little-endian bytes; only FLOAT32 is exact."""
    if states == BFLOAT16:
        return _bytes(rows.bfloat16().view(torch.int16))
    if states == INT8:
        scales = rows.abs().amax(dim=1, keepdim=True) / MAX_INT8
        return _bytes(scales) + _bytes((rows / scales.clamp_min(torch.finfo(rows.dtype).tiny)).round().char())
    return _bytes(rows)


def unpack_states(data: bytes, hidden: int, states: States) -> Tensor:
    """Decode to float32 ``[rows, hidden]``. Raises ``ValueError`` for incomplete rows."""
    count, rest = divmod(len(data), row_bytes(hidden, states))
    if rest:
        raise ValueError(f"{len(data)} bytes are not a multiple of the size of a hidden state ({hidden} numbers)")
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
