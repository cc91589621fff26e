"""Edge and cloud models on a tiny real model: back ends agree, the journal answers, errors are told."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Trace
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.records.journal import Journal
from tests.support import journals
from tests.support.edge import TWO_TURNS, Start, edge, row
from tests.support.locked_folder import locked_folder
from tests.support.models import build_model


@pytest.mark.parametrize("backend", ["PromptLookup", "huggingface"])
def test_a_response_keeps_the_contract_and_counts_tokens(job: Path, tiny_model: Path, backend: str) -> None:
    model = edge(tiny_model, backend=backend)
    model.load()
    response = model.predict(TWO_TURNS)
    usage = response["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens"] == sum(len(turn["token_ids"]) for turn in response["turns"])
    for turn in response["turns"]:
        trace = msgspec.convert(turn["trace"], Trace)
        assert trace.tokens == len(turn["token_ids"]) == turn["usage"]["completion_tokens"]
        assert [seconds for seconds, _ in trace.chunks] == sorted(seconds for seconds, _ in trace.chunks)
        if backend != "huggingface":
            assert sum(step.emitted for step in trace.steps) + 1 == trace.tokens
    assert response["perf"]["latency"] > response["perf"]["time_to_first_token"] > 0
    told = [response[name] for name in ("side", "backend", "query_id", "group")]
    assert told == ["edge", backend, "q1", "g"]
    assert json.loads(json.dumps(response))["usage"] == response["usage"]
    model.cleanup()


@pytest.mark.slow
def test_cleanup_syncs_the_journal_and_lets_others_ask(
    job: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = edge(tiny_model, backend="autoregressive")
    model.predict(TWO_TURNS)
    journal = Journal.of_job()
    with pytest.raises(AssertionError), locked_folder(journal.path.parent):
        pass
    model.cleanup()
    assert journal.path.with_name(f"{journal.path.name}-wal").stat().st_size == 0
    with locked_folder(journal.path.parent):
        pass


def test_all_back_ends_give_the_same_tokens(job: Path, tiny_model: Path) -> None:
    responses = {
        name: edge(tiny_model, backend=name).predict(TWO_TURNS)
        for name in ("autoregressive", "PromptLookup", "huggingface")
    }
    ids = {name: [turn["token_ids"] for turn in response["turns"]] for name, response in responses.items()}
    assert ids["autoregressive"] == ids["PromptLookup"] == ids["huggingface"]
    first, second = responses["autoregressive"]["turns"]
    chat = f"<user>ab ab ab<assistant>{first['completion']}<user>and again<assistant>"
    assert second["usage"]["prompt_tokens"] == len(chat.encode())
    baselines = [turn["baseline"] for response in responses.values() for turn in response["turns"]]
    assert all(baseline["identical"] is True and baseline["latency"] > 0 for baseline in baselines)


def test_sampling_is_reproducible_and_depends_on_the_seed(job: Path, tiny_model: Path) -> None:
    def ids(**changes: Any) -> Any:
        return edge(tiny_model, temperature=1.0, use_cache=False, **changes).predict(row("x"))["turns"][0]["token_ids"]

    assert ids() == ids()
    assert ids() != ids(seed=5)
    assert ids(backend="huggingface") == ids(backend="huggingface")


def test_a_long_prompt_is_cut_where_that_is_permitted(
    job: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = build_model(tmp_path / "small", window=64)
    for backend in ("autoregressive", "huggingface", "PromptLookup"):
        caplog.clear()
        model = edge(small, backend=backend, max_tokens=16, truncate_prompts=True)
        for letter in "yz":
            turn = model.predict(row(letter * 500))["turns"][0]
            assert turn["usage"]["prompt_tokens"] == 48
            assert turn["truncated"] == len("<user>" + "y" * 500 + "<assistant>") - 48
            assert turn["usage"]["completion_tokens"] <= 16
        assert [record.message for record in caplog.records if "Truncated Prompts" in record.message] == [
            "edge model: a prompt did not fit into the model's window and lost its oldest 469 tokens "
            "(truncate_prompts); the column Truncated Prompts counts such prompts"
        ]
    assert journals.text(job).count('"truncated":469') == 6


def test_a_long_prompt_is_refused_by_default(job: Path, tmp_path: Path, new_run: Start) -> None:
    small = build_model(tmp_path / "small", window=64)
    long = row("y" * 500)
    refused = r"the prompt has 517 tokens and leaves no room in the model's context window of 64: .*truncate_prompts"
    for backend in ("autoregressive", "huggingface", "PromptLookup"):
        with pytest.raises(UserError, match=refused):
            edge(small, backend=backend).predict(long)
        model = edge(small, backend=backend, max_failures=1)
        response = model.predict(long)
        assert re.match(refused, response["error"])
        assert [kind for _, kind in response["failures"]] == ["context window"]
        assert response["turns"] == []
        with pytest.raises(UserError, match="2 queries got no answer, max_failures permits 1"):
            model.predict(long)
        # The longest prompt that fits, and the shortest that does not.
        fits = model.predict(row("y" * (63 - len("<user><assistant>"))))["turns"][0]
        assert (fits["usage"]["completion_tokens"], fits["finish_reason"]) == (1, "length")
        with pytest.raises(UserError, match="has 64 tokens"):
            edge(small, backend=backend).predict(row("y" * (64 - len("<user><assistant>"))))
    failures = [entry for entry in journals.entries(job) if "error" in entry]
    assert len(failures) == 12


def test_a_second_turn_that_does_not_fit_leaves_the_first_answer(job: Path, tmp_path: Path) -> None:
    small = build_model(tmp_path / "small", window=64)
    query = {"turns": ["short", "y" * 100], "id": "q", "scorer": "none"}
    response = edge(small, max_failures=1).predict({"query": query, "gold": {}, "index": 0})
    assert len(response["turns"]) == 1
    assert "leaves no room" in response["error"]


def test_a_cut_prompts_answer_serves_who_permits_it(
    job: Path, tmp_path: Path, new_run: Start, caplog: pytest.LogCaptureFixture
) -> None:
    small, long = build_model(tmp_path / "small", window=64), row("y" * 500)
    cut = edge(small, truncate_prompts=True).predict(long)
    new_run()
    with pytest.raises(UserError, match="leaves no room"):
        edge(small).predict(long)
    new_run()
    again = edge(small, truncate_prompts=True).predict(long)
    assert (again["replayed"], again["completion"]) == (True, cut["completion"])
    assert sum("Truncated Prompts" in record.message for record in caplog.records) == 2


def test_the_cloud_can_follow_the_edge(job: Path, tiny_model: Path) -> None:
    cloud = CloudModel(model=str(tiny_model), backend="same-as-edge", dtype="float32", max_tokens=12)
    front = edge(tiny_model, backend="PromptLookup")
    response = cloud.inference(row("x"))
    assert (response["backend"], response["side"]) == ("PromptLookup", "cloud")
    assert front.predict(row("x"))["cached"]
    with pytest.raises(UserError, match="same-as-edge"):
        EdgeModel(model=str(tiny_model), backend="same-as-edge")


def test_cost_comes_from_the_prices(job: Path, tiny_model: Path) -> None:
    usage = (response := edge(tiny_model, price_prompt=2.0, price_completion=10).predict(row("x")))["usage"]
    assert response["cost"] == pytest.approx((usage["prompt_tokens"] * 2 + usage["completion_tokens"] * 10) / 1e6)
    assert edge(tiny_model).predict(row("x"))["cost"] is None
    prices = {"model": str(tiny_model), "price_prompt": 2, "price_completion": 10, "price_cached": 0.5}
    assert ModelSettings.parse(prices).cost(100, 10, cached_tokens=60) == pytest.approx(210 / 1e6)


def test_a_deep_copy_is_equal_and_independent(job: Path, tiny_model: Path) -> None:
    response = edge(tiny_model).predict(TWO_TURNS)
    twin = copy.deepcopy(response)
    assert twin == response
    twin["turns"][0]["usage"]["prompt_tokens"] = -1
    twin["turns"].append({})
    assert response["turns"][0]["usage"]["prompt_tokens"] > 0
    assert len(response["turns"]) == 2


def test_the_journal_is_tried_before_the_model_works(
    job: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job / "journal.sqlite").mkdir(parents=True)
    monkeypatch.setattr("ianvs_specdec.backends.local.LocalLLM.load", lambda self: pytest.fail("the model was loaded"))
    with pytest.raises(UserError, match=r"cannot (read|write) the journal"):
        edge(tiny_model).predict(row("x"))


def test_a_broken_model_folder_is_one_message(job: Path, tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    with pytest.raises(UserError, match=r"no config\.json"):
        edge(tmp_path / "broken")
    (tmp_path / "broken" / "config.json").write_text('{"model_type": "llama"}')
    model = edge(tmp_path / "broken")
    model.load()
    with pytest.raises(UserError, match="cannot load the model"):
        model.predict(row("x"))
