"""``ianvs check`` warns of missing environment variables, which answers from the journal do not need."""

from __future__ import annotations

import pytest

from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.plugin.processor import DatasetProcessor

REMOTE = "https://models.example.com/v1"


def warnings(caplog: pytest.LogCaptureFixture, **hyperparameters: str) -> list[str]:
    """Messages of two checks, as of test cases with the same settings."""
    caplog.clear()
    for _ in range(2):
        if "judge_model" in hyperparameters:
            DatasetProcessor.check_hyperparameters(hyperparameters)
        else:
            EdgeModel.check_hyperparameters({"backend": "api", "model": "m", **hyperparameters})
    return [record.getMessage() for record in caplog.records]


def test_an_unset_variable_is_reported_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UNREADY_KEY", "UNREADY_URL"):
        monkeypatch.delenv(name, raising=False)
    (message,) = warnings(caplog, api_base_url=REMOTE, api_key_env="UNREADY_KEY")
    assert "the environment variable UNREADY_KEY (api_key_env) holds no API key" in message
    (message,) = warnings(caplog, judge_model="j", judge_base_url=REMOTE, judge_key_env="UNREADY_KEY")
    assert "the judge: the environment variable UNREADY_KEY (judge_key_env) holds no API key" in message
    (message,) = warnings(caplog, api_base_url="UNREADY_URL")
    assert "the environment variable UNREADY_URL (api_base_url) holds no URL" in message
    monkeypatch.setenv("OTHER_KEY", "secret")
    assert not warnings(caplog, api_base_url=REMOTE, api_key_env="OTHER_KEY")
