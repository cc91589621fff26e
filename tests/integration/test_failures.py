"""Failures of single test cases, one message each, without secrets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.counting_api import CountingAPI
from tests.support.harness import Workplace, questions

KEY = "sk-0123456789-not-for-anybody"
PASSWORD = "correct-horse-battery"


def test_a_cloud_without_its_key_leaves_the_edge_alone(workplace: Workplace, api: CountingAPI) -> None:
    workplace.on_api(api.url)
    workplace.settings("cloud", api_base_url="https://cloud.invalid/v1", api_key_env="CLOUD_KEY")
    workplace.data(questions(4))
    outcome = workplace.ianvs()
    assert outcome.code == 1
    assert workplace.leaderboard().keys() == {("EdgeOnly", "api")}
    told = outcome.lines("the environment variable CLOUD_KEY (api_key_env) holds no API key")
    assert ["failed:" in line for line in told] == [False, True, True, True], "once before the run, then where it fails"
    assert "3 of 4 test cases failed" in outcome.stderr
    assert "Traceback" not in outcome.output
    assert len(api.asked) == 4


@pytest.mark.slow
def test_a_model_that_does_not_load_fails_its_test_case_only(
    workplace: Workplace, api: CountingAPI, models: tuple[Path, Path], tmp_path: Path
) -> None:
    workplace.on_api(api.url)
    workplace.backends("api", cloud="autoregressive")
    workplace.settings("cloud", model=str(models[1]), max_tokens=4)
    folders = [str(shutil.copytree(models[1], tmp_path / name)) for name in ("no-tokenizer", "whole")]
    Path(folders[0], "tokenizer.json").unlink()
    workplace.hyperparameter("cloud_only.yaml", "cloudmodel", "model", folders)
    workplace.algorithms("EdgeOnly", "CloudOnly")
    workplace.data(questions(4))
    outcome = workplace.ianvs()
    assert outcome.code == 1
    assert len(outcome.lines(f"failed: row 1 of 4: cannot load the tokenizer of {folders[0]}: ")) == 1
    assert "1 of 3 test cases failed" in outcome.stderr
    assert "Traceback" not in outcome.output
    leaderboard = workplace.leaderboard()
    assert leaderboard.keys() == {("EdgeOnly", "api"), ("CloudOnly", "api")}
    assert leaderboard["CloudOnly", "api"]["cloudmodel-model"] == folders[-1]


def test_an_api_key_instead_of_its_variable_is_refused_and_hidden(workplace: Workplace, api: CountingAPI) -> None:
    workplace.on_api(api.url)
    workplace.settings("edge", api_key_env=KEY)
    workplace.settings("cloud", api_base_url=api.url.replace("://", f"://user:{PASSWORD}@"))
    workplace.data(questions(4))
    outcome = workplace.ianvs("--debug")
    assert outcome.code == 2
    for side, key in (("edge", "api_key_env must be the name"), ("cloud", "the URL under api_base_url must hold no")):
        assert any(f"{side}_settings.yaml:" in line for line in outcome.lines(key))
    assert KEY not in outcome.output
    assert PASSWORD not in outcome.output
    assert not workplace.workspace.exists()
    assert not api.asked
