"""Outcomes of a finished job, from test cases and the journal."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import yaml

from ianvs_specdec.benchmarks.judge_prompts import conversations, read_prompts
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.routing.outcomes.job import outcomes_of_job
from tests.support.workspace import Bench, Side, choice, completion, usual

RIGHT, WRONG = "The answer is B.", "The answer is C."
SAMPLING = Sampling().to_json()


def put(bench: Bench, side: str, texts: dict[int, str], **value: Any) -> None:
    """Answers in the journal only."""
    journal = Journal(bench.folder / "journal.sqlite", "run")
    configuration = Configuration(side, {"sampling": SAMPLING, **value})
    for index, text in texts.items():
        messages = [{"role": "user", "content": bench.rows[index]["question"]["turns"][0]}]
        journal.put(configuration, messages, completion(text), side=side, hardware={})


def one_sided(root: Path, count: int = 4, **hyperparameters: Any) -> Bench:
    """A job with answers of the edge only."""
    bench = Bench(root, [choice(number) for number in range(count)])
    edges = [Side("edge", "autoregressive", [completion(RIGHT if index % 2 else WRONG)]) for index in range(count)]
    bench.case("EdgeOnly", [(edge, None) for edge in edges], **hyperparameters)
    return bench


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_answers_in_the_journal_only_count(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = one_sided(tmp_path, price_prompt=100.0)
    put(bench, "cloud", {0: RIGHT, 1: RIGHT, 3: WRONG})
    with caplog.at_level(logging.WARNING):
        found = outcomes_of_job(bench.folder)
    assert [query.id for query in found.queries] == ["q0", "q1", "q3"]
    assert (found.edge.tolist(), found.cloud.tolist()) == ([0, 1, 1], [1, 1, 0])
    assert found.cloud_cost is not None
    assert found.cloud_cost.tolist() == pytest.approx([20 * 100 / 1e6] * 3)
    assert "1 of 4 queries are left out: 1 were not answered by both models, 0 have no score" in caplog.text


def test_rows_that_the_data_file_no_longer_has_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bench = one_sided(tmp_path)
    put(bench, "cloud", dict.fromkeys(range(4), RIGHT))
    bench.data.write_text("".join(bench.data.read_text(encoding="utf-8").splitlines(keepends=True)[:3]))
    with caplog.at_level(logging.WARNING):
        assert len(outcomes_of_job(bench.folder)) == 3
    assert "does not have the rows that the job answered: rows left out: 1" in caplog.text


def test_answers_with_other_sampling_do_not_count(tmp_path: Path) -> None:
    bench = one_sided(tmp_path)
    put(bench, "cloud", {0: RIGHT}, acceptance="typical")
    put(bench, "cloud", {1: RIGHT}, sampling={**SAMPLING, "temperature": 0.7})
    with pytest.raises(UserError, match=r"no query that both .* have answered: run OracleRouter"):
        outcomes_of_job(bench.folder)


def test_several_pairs_of_models_need_an_algorithm(tmp_path: Path) -> None:
    bench = usual(Bench(tmp_path, [choice(number) for number in range(4)]))
    other = [
        (Side("edge", "autoregressive", [completion(WRONG)]), Side("cloud", "autoregressive", [completion(RIGHT)]))
    ] * 4
    bench.case("OracleRouter", other, temperature=0.5)
    with pytest.raises(UserError, match=r"several pairs of models or data files .*: name one of its algorithms"):
        outcomes_of_job(bench.folder)
    assert outcomes_of_job(bench.folder, algorithm="oraclerouter").edge.tolist() == [0, 0, 0, 0]
    with pytest.raises(UserError, match="no algorithm oracle; it holds: edgeonly, cloudonly, oddrouter, oraclerouter"):
        outcomes_of_job(bench.folder, algorithm="oracle")


def test_a_workspace_of_several_jobs_is_refused(tmp_path: Path) -> None:
    rows = [choice(number) for number in range(2)]
    for name in ("one", "two"):
        usual(Bench(tmp_path, rows, name))
    with pytest.raises(UserError, match=r"several jobs \(one, two\): give the folder of one of them"):
        outcomes_of_job(tmp_path / "workspace")


def test_ratings_come_from_the_journal(tmp_path: Path) -> None:
    answers = {"edge": ["poor", "worse"], "cloud": ["good", "better"]}
    said = {"edge": ("[[2]]", "[[3]]"), "cloud": ("[[9]]", "[[10]]")}
    question = {"turns": ["one?", "two?"], "id": "81", "group": "writing", "scorer": "judge"}
    unrated = {**question, "turns": ["three?", "four?"], "id": "82"}
    bench = Bench(tmp_path, [{"question": question, "answer": {}}, {"question": unrated, "answer": {}}])
    sides = {
        side: Side(side, "autoregressive", [completion(text) for text in texts]) for side, texts in answers.items()
    }
    folder = bench.case("OracleRouter", [(sides["edge"], sides["cloud"])] * 2)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["modules"].append({"type": "dataset_processor", "name": "P", "hyperparameters": {"judge_model": "j"}})
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(UserError, match="holds no score for any of 2 queries"):
        outcomes_of_job(bench.folder)
    journal = Journal(bench.folder / "journal.sqlite", "run")
    judge, prompts = Configuration("j", {"backend": "api"}), read_prompts()
    for side, texts in answers.items():
        asked = conversations(prompts, question["turns"], texts, [], "writing")
        for messages, text in zip(asked, said[side], strict=True):
            journal.put(judge, messages, completion(text), side="judge", hardware={})
    found = outcomes_of_job(bench.folder)
    assert [query.id for query in found.queries] == ["81"]
    assert (found.edge[0], found.cloud[0]) == pytest.approx(((2.5 - 1) / 9, (9.5 - 1) / 9))
