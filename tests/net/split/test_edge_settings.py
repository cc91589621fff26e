"""Settings of an edge, and the trace of an answer."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.backends.split.edge.settings import EdgeSettings, read_token, remote_target
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.draft_model.drafter import DraftModel
from ianvs_specdec.net.link import Path as NetworkPath
from ianvs_specdec.net.link.link import Link
from tests.net.split.conftest import PROMPT
from tests.support.models import build_model
from tests.support.verifiers import PATIENCE, edge_of

GREEDY = Sampling(max_tokens=40)


def test_edge_without_drafter_streams(verifier, alone):
    with contextlib.closing(Connection(Access(verifier.address))) as connection:
        model = connection.describe(PATIENCE)
        edge = EdgeSettings(mode="stream").edge(connection, model, remote_target(model, None, "float32"))
        answer = edge.decode(PROMPT, GREEDY)
    assert answer.token_ids == alone(PROMPT, GREEDY)
    assert answer.split.streamed == len(answer.token_ids) - 1
    assert (answer.split.waits, answer.trace.steps) == (0, [])
    with pytest.raises(UserError, match="method is missing"):
        EdgeSettings.parse({})


def test_verifier_time_excludes_waiting(verifier, folder, monkeypatch):
    slow = 0.05
    continuations = DraftModel.continuations

    def slowly(self, context):
        time.sleep(slow)
        return continuations(self, context)

    with edge_of(verifier.address, folder) as edge:
        edge.decode(PROMPT, GREEDY)
        monkeypatch.setattr(DraftModel, "continuations", slowly)
        answer = edge.decode(PROMPT, GREEDY)
    assert answer.split.in_flight == 1
    assert answer.split.waits == len(answer.trace.steps)
    assert answer.split.drafting >= slow
    assert 0 < answer.split.prefill < answer.trace.chunks[0][0] + slow
    assert 0 < answer.split.work < answer.trace.latency - answer.split.drafting


def test_drafts_ahead_hide_the_round_trip(verifier, folder, monkeypatch):
    # A model of random weights is never sure.
    for name in ("drafts.MIN_SEND_PROBABILITY", "drafts.MIN_PROBABILITY"):
        monkeypatch.setattr(f"ianvs_specdec.backends.split.edge.{name}", 0.0)
    with (
        Link(to=verifier.address, path=NetworkPath(delay=0.05)) as link,
        edge_of(link.address, folder, in_flight=4) as edge,
    ):
        answer = edge.decode(PROMPT, GREEDY)
    assert answer.split.in_flight == 4
    assert 1 <= answer.split.waits < len(answer.trace.steps)


def test_other_tokenizer_is_an_error(verifier, tmp_path):
    with contextlib.closing(Connection(Access(verifier.address))) as connection:
        model = connection.describe(PATIENCE)
    model.tokenizer = "0" * 64
    with pytest.raises(UserError, match="has another tokenizer than target"):
        remote_target(model, build_model(tmp_path / "other"), "float32")


def test_token_file(tmp_path: Path):
    (tmp_path / "token").write_text("  a-secret-of-16-chars \nmore\n")
    assert read_token(tmp_path / "token") == "a-secret-of-16-chars"
    assert read_token(None) == ""
    (tmp_path / "empty").write_text("\n")
    for file in (tmp_path / "empty", tmp_path / "none"):
        with pytest.raises(UserError, match="no token can be read from it"):
            read_token(file)
