"""Encoding of messages: size, round trips, the generated module."""

from __future__ import annotations

import pytest

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree
from ianvs_specdec.net.split.split_pb2 import Down, Draft, Open, Up, Verdict
from ianvs_specdec.net.split.wire import decode_draft, encode_draft, node_at, read_sampling, write_sampling
from tests.support.paths import ROOT

SOURCE = ROOT / "src" / "ianvs_specdec" / "net" / "split"


def test_generated_module_is_current(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc", reason="needs grpcio-tools, which the extra dev has")
    made = f"-I{ROOT / 'src'}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", str(SOURCE / "split.proto")
    assert protoc.main(["protoc", *made]) == 0
    for name in ("split_pb2.py", "split_pb2.pyi"):
        assert (tmp_path / "ianvs_specdec" / "net" / "split" / name).read_text() == (SOURCE / name).read_text()


def test_bytes_per_round():
    """Of ids below 2^14, as those of the embedded models, in the middle of an answer of some hundred tokens."""
    chain = Up(draft=encode_draft(TokenTree.chain(9000, [9001, 9002, 9003, 9004])))
    ahead = Up(draft=encode_draft(TokenTree.chain(9000, [9001, 9002, 9003, 9004]), ahead=True))
    verdict = Down(verdict=Verdict(node=4, token=9005))
    assert (chain.ByteSize(), ahead.ByteSize(), verdict.ByteSize()) == (12, 15, 7)
    tree = Up(draft=encode_draft(TokenTree([9000, 9001, 9002, 9003, 9004], [-1, 0, 0, 1, 1])))
    assert tree.ByteSize() == 12 + 2 + 4


@pytest.mark.parametrize(
    "tree", [TokenTree.chain(1), TokenTree.chain(1, [2, 3]), TokenTree([1, 2, 3, 4, 5], [-1, 0, 0, 1, 2])]
)
def test_tree_round_trip(tree):
    arrived = Draft.FromString(encode_draft(tree, ahead=True).SerializeToString())
    assert arrived.guess == tree.tokens[0] + 1
    assert decode_draft(arrived, 1, 64) == tree
    assert decode_draft(arrived, 1, 1).tokens == tree.tokens[:2]


def test_node_at_with_equal_siblings():
    tree = TokenTree([1, 2, 2, 7, 8], [-1, 0, 0, 1, 2])
    assert [node_at(tree, path) for path in ([], [2, 7], [2, 8])] == [0, 3, 4]


def test_sampling_round_trip():
    sampling = Sampling(99, 0.7, 0.9, 40, 1.1, (1 << 64) - 1, ("end", "stop"))
    message = Open()
    write_sampling(message, sampling)
    assert read_sampling(Open.FromString(message.SerializeToString())) == sampling
