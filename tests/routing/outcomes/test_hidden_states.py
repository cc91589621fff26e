"""Hidden states of queries: what the model computes, recorded once, and never those of something else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ianvs_specdec.backends import backend  # noqa: E402
from ianvs_specdec.common.errors import UserError  # noqa: E402
from ianvs_specdec.common.types import Query, Sampling, messages_of  # noqa: E402
from ianvs_specdec.routing.outcomes import hidden_states  # noqa: E402
from tests.support.models import build_model  # noqa: E402

QUERIES = [Query(id=str(i), turns=(f"question {i}", "and then?")) for i in range(5)]
LAYERS = (0, 2)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory):
    model = build_model(tmp_path_factory.mktemp("model"))
    with backend("autoregressive")(str(model), dtype="float32", device="cpu", threads=1) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_states, "SHARD", 2)


def test_each_query_has_its_own_states_of_its_first_turn(llm, tmp_path: Path) -> None:
    found = hidden_states.record(llm, QUERIES, tmp_path / "states")
    rows = found.of(QUERIES, LAYERS)
    assert (rows.shape, rows.dtype) == ((5, 2, 64), np.float16)
    for query, row in zip(QUERIES, rows, strict=True):
        np.testing.assert_array_equal(row, llm.encode(messages_of(query, []), Sampling(max_tokens=1), LAYERS).states)


def test_a_stopped_recording_goes_on_and_a_whole_one_asks_nobody(llm, tmp_path: Path) -> None:
    read: list[int] = []

    def stops() -> None:
        read.append(1)
        if len(read) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hidden_states.record(llm, QUERIES, tmp_path, stops)
    read[:] = [1] * 10
    found = hidden_states.record(llm, QUERIES, tmp_path, stops)
    assert len(read) == 10 + 3
    np.testing.assert_array_equal(found.rows, hidden_states.record(llm, QUERIES, tmp_path, stops).rows)
    assert len(read) == 10 + 3


@pytest.mark.slow
def test_states_of_something_else_are_refused(llm, tmp_path: Path) -> None:
    hidden_states.record(llm, QUERIES, tmp_path)
    with pytest.raises(UserError, match="hidden states of other queries, layers or models"):
        hidden_states.record(llm, QUERIES[:4], tmp_path)
