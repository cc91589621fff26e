"""Judgments come from the journal, and the judge is never asked."""

from __future__ import annotations

import csv
import io
import shutil
from pathlib import Path

import pytest
import yaml

from ianvs_specdec.benchmarks.judge_prompts import SHIPPED, conversations, read_prompts
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.report.collect import collect, to_csv
from tests.support.workspace import Bench, Side, completion

QUESTIONS = [(f"first {number}", f"second {number}") for number in range(4)]
ANSWERS = ("an answer", "another answer")


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Four questions of two turns; the judge has rated 8 and 5, of the third the first turn alone, of the last nothing
    that is a rating.
    """
    monkeypatch.chdir(tmp_path)
    rows = [
        {"question": {"turns": list(turns), "id": turns[0], "group": group, "scorer": "judge"}, "answer": {}}
        for turns, group in zip(QUESTIONS, ("writing", "stem", "writing", "stem"), strict=True)
    ]
    bench = Bench(tmp_path, rows)
    folder = bench.case("CloudOnly", [(None, Side("cloud", "autoregressive", [completion(a) for a in ANSWERS]))] * 4)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    processor = {"type": "dataset_processor", "name": "P", "hyperparameters": {"judge_model": "a-judge"}}
    config["modules"].append(processor)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    journal = Journal(bench.folder / "journal.sqlite", "run")
    judge, prompts = Configuration("a-judge", {"backend": "api"}), read_prompts()
    said = [("[[8]]", "[[5]]"), ("[[2]]", "[[3]]"), ("[[9]]",), ("good", "[[7]]")]
    for row, texts in zip(rows, said, strict=True):
        question = row["question"]
        asked = conversations(prompts, question["turns"], ANSWERS, [], question["group"])
        for messages, text in zip(asked, texts, strict=False):
            journal.put(judge, messages, completion(f"Rating: {text}"), side="judge", hardware={})
    return bench


def test_scores_are_the_means_of_the_ratings(bench: Bench) -> None:
    document = collect(bench.folder)
    (case,) = document["cases"]
    assert case["judge"] == "a-judge with the prompts specdec-judge-v1"
    (row,) = csv.DictReader(io.StringIO(to_csv(document)))
    assert row["judge"] == case["judge"]
    assert [entry.get("score") for entry in case["entries"]] == [6.5, 2.5, None, None]
    assert case["entries"][0]["judgments"] == [[8.0, "Rating: [[8]]"], [5.0, "Rating: [[5]]"]]
    assert case["entries"][0]["rules"] == ["the last marked"] * 2
    assert "judgments" not in case["entries"][2]
    assert case["entries"][3]["judgments"][0] == [None, "Rating: good"]
    assert {kind: figures["Accuracy"] for kind, figures in case["groups"].items()} == {"stem": 2.5, "writing": 6.5}


def test_another_judges_judgments_are_not_taken(bench: Bench) -> None:
    (path,) = bench.folder.glob("*/*/config.yaml")
    path.write_text(path.read_text().replace("a-judge", "another-judge"))
    (case,) = collect(bench.folder)["cases"]
    assert not any("judgments" in entry or "score" in entry for entry in case["entries"])
    assert case["judge"] == ""
    assert case["notes"] == [
        "single judgments are not shown: the journal has none of another-judge with the prompts specdec-judge-v1"
    ]


def test_prompts_of_the_users_own_are_named_with_their_digest(bench: Bench, tmp_path: Path) -> None:
    (path,) = bench.folder.glob("*/*/config.yaml")
    path.write_text(path.read_text().replace("judge_model: a-judge", "judge_model: a-judge\n    judge_prompts: mine"))
    (note,) = collect(bench.folder)["cases"][0]["notes"]
    assert note.startswith("single judgments are not shown: ")
    assert "mine" in note
    shutil.copy(SHIPPED, tmp_path / "mine")
    (case,) = collect(bench.folder)["cases"]
    assert case["judge"] == f"a-judge with the prompts mine ({read_prompts().digest[:12]})"
