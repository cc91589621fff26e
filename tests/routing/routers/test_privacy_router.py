"""PrivacyRouter: detection of personal data, and decisions."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.routers.oracle import OracleRouter
from ianvs_specdec.routing.routers.personal_data import kinds_in
from ianvs_specdec.routing.routers.privacy import PrivacyRouter
from tests.routing.routers.personal_texts import NEGATIVES, POSITIVES
from tests.support.paths import shared_file

PRIVATE = "Write to anna.schmidt@example.com for me."


def test_personal_data_is_found() -> None:
    assert [text for kind, text in POSITIVES if kind not in kinds_in(text)] == []
    found = {text: kinds for text in NEGATIVES if (kinds := kinds_in(text))}
    assert len(found) <= 1, found


def mmlu_text(row: dict[str, Any]) -> str:
    return "\n".join([row["question"], *row["choices"]])


@pytest.mark.parametrize(
    ("path", "text_of", "every"),
    [
        ("mmlu/mmlu_test.jsonl.gz", mmlu_text, 16),
        pytest.param("mmlu/mmlu_test.jsonl.gz", mmlu_text, 1, marks=pytest.mark.slow),
        ("gsm8k/test_sample.jsonl", lambda row: row["question"], 1),
        ("mt_bench/question.jsonl", lambda row: "\n".join(row["turns"]), 1),
    ],
)
def test_benchmark_questions_hold_no_personal_data(path: str, text_of: Any, every: int) -> None:
    file = shared_file("data", *path.split("/"))
    with gzip.open(file, "rt") if file.suffix == ".gz" else file.open(encoding="utf-8") as lines:
        chosen = itertools.islice(lines, 0, None, every)
        found = [kinds for line in chosen if (kinds := kinds_in(text_of(json.loads(line))))]
    assert not found


def test_time_is_bounded_on_long_queries() -> None:
    """With a pattern that backtracks without bound this does not end within a test run."""
    units = ["a", "1 ", "4111 ", "a@a.", "(1", "1:", "DE89 ", "eyJaaaaaaaaaa.", "-----BEGIN A ", "password is "]
    for unit in (*units, "a [at] b "):
        kinds_in(unit * (40_000 // len(unit)) + "!1")


def test_private_queries_stay_on_the_edge_without_their_text() -> None:
    router = PrivacyRouter({"name": "CloudOnly"})
    row = {"query": f"{PRIVATE} My card is 4111 1111 1111 1111.", "index": 0}
    assert router(row) is False
    assert router({"query": "What is the capital of France?"}) is True
    for question in ({"system": PRIVATE}, {"prediction": [PRIVATE]}, {"turns": ["Hello.", PRIVATE]}):
        assert router({"query": {"turns": ["Hello."], **question}}) is False
    record = row["routing"]
    assert record["reason"] == "personal data: email, card"  # type: ignore[index]
    assert record["private"] == ["email", "card"]  # type: ignore[index]
    assert "anna" not in json.dumps(record)
    assert "4111" not in json.dumps(record)


class Untouchable:
    """A model that must not be asked."""

    def predict(self, data: Any, **_: Any) -> Any:
        raise AssertionError("asked about a private query")

    inference = predict


def test_the_wrapped_router_is_not_called_for_a_private_query() -> None:
    router = PrivacyRouter(OracleRouter(edgemodel=Untouchable(), cloudmodel=Untouchable()))
    row = {"query": PRIVATE, "gold": "A", "index": 0}
    assert router(row) is False
    # After the edge has answered (inference-then-mining) Ianvs hands over its response.
    response = Response({"completion": "B"})
    response.row = row
    assert router(response) is False
    assert response["routing"]["reason"] == "personal data: email"
    with pytest.raises(AssertionError):
        router({"query": "What is the capital of France?", "gold": "A", "index": 0})


def test_patterns_and_kinds() -> None:
    router = PrivacyRouter("CloudOnly", kinds=["phone"], patterns={"patient": ["PAT-[0-9]{6}", "case [A-Z]{3}"]})
    assert router({"query": PRIVATE}) is True
    row = {"query": "Summarise PAT-123456."}
    assert router(row) is False
    assert row["routing"]["private"] == ["patient"]  # type: ignore[index]
    assert router({"query": "Is case ABC closed?"}) is False


def test_a_pattern_that_times_out_keeps_the_query_on_the_edge() -> None:
    router = PrivacyRouter("CloudOnly", patterns={"slow": r"(?:a|a?b?)+$"})
    assert router({"query": "ab" * 50_000 + "!"}) is False


def test_without_presidio_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"pip install 'presidio"):
        PrivacyRouter("CloudOnly", detector="en_core_web_sm")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"presidio_analyzer is not installed: pip install 'presidio"):
        PrivacyRouter.check_hyperparameters({"detector": "en_core_web_sm"})


def test_a_detector_adds_what_it_finds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With stand-ins of the two packages that have the parts of their interfaces that are used."""
    asked: list[dict[str, Any]] = []

    class Analyzer:
        def __init__(self, **_: Any) -> None: ...

        def get_supported_entities(self, language: str) -> list[str]:
            return ["PERSON", "LOCATION"]

        def analyze(self, **arguments: Any) -> list[Any]:
            asked.append(arguments)
            return [types.SimpleNamespace(entity_type="PERSON")] if "Ada" in arguments["text"] else []

    class Provider:
        def __init__(self, nlp_configuration: dict[str, Any]) -> None:
            assert nlp_configuration["models"] == [{"lang_code": "en", "model_name": str(tmp_path)}]

        def create_engine(self) -> None: ...

    def module(name: str, **members: Any) -> None:
        made = types.ModuleType(name)
        for member, value in members.items():
            setattr(made, member, value)
        monkeypatch.setitem(sys.modules, name, made)

    module("spacy", util=types.SimpleNamespace(is_package=lambda name: False))
    module("presidio_analyzer", AnalyzerEngine=Analyzer)
    module("presidio_analyzer.nlp_engine", NlpEngineProvider=Provider)
    router = PrivacyRouter("CloudOnly", detector={"model": str(tmp_path), "entities": ["PERSON"]})
    row = {"query": f"Ada lives here. {PRIVATE}"}
    assert router(row) is False
    assert row["routing"]["private"] == ["email", "person"]  # type: ignore[index]
    assert asked[0]["entities"] == ["PERSON"]
    assert router({"query": "Nobody does."}) is True
    with pytest.raises(UserError, match="no spaCy model"):
        PrivacyRouter("CloudOnly", detector="not_there")


def test_presidio_itself(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy", reason="needs the extra privacy")
    pytest.importorskip("presidio_analyzer", reason="needs the extra privacy")
    spacy.blank("en").to_disk(tmp_path / "model")
    router = PrivacyRouter("CloudOnly", kinds=[], detector=str(tmp_path / "model"))
    row = {"query": PRIVATE}
    assert router(row) is False
    assert "email_address" in row["routing"]["private"]  # type: ignore[index]
    assert router({"query": "What is the capital of France?"}) is True
