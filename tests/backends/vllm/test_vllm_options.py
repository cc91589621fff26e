"""Options of the back end ``vllm``, without vLLM."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends.vllm.backend import VllmLLM
from ianvs_specdec.common.errors import UserError
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"
HEAD = str(MODELS / "cloud-eagle")


def vllm(**options: Any) -> VllmLLM:
    return VllmLLM(str(MODELS / "cloud"), **options)


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"dtype": "float8"}, "dtype", "unknown dtype"),
        ({"gpu_memory_utilization": 90}, "gpu_memory_utilization", "above 0 and at most 1"),
        ({"max_seqs": 3}, "max_seqs", "max_num_seqs"),
        ({"speculative": {"num_speculative_tokens": 3}}, "speculative", "needs a method"),
        ({"speculative": {"method": "ngram", "num_speculative_tokens": 0}}, "speculative", "whole number from 1"),
        ({"speculative": {"method": "eagle", "model": "no/such/head"}}, "speculative", "no model folder"),
        ({"speculative": {"method": "ngram", "num_speculative_token": 3}}, "speculative", "num_speculative_tokens'"),
        ({"speculative": {"method": "eagel3", "model": HEAD}}, "speculative", "Did you mean 'eagle3'"),
        ({"engine_args": {"dtype": "float32"}}, "engine_args", "that is the option dtype"),
        ({"engine_args": {"speculative_config": {}}}, "engine_args", "that is the option speculative"),
    ],
)
def test_invalid_options_are_rejected_with_their_key(options: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        vllm(**options)
    assert error.value.key == key


def test_unknown_names_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    for method in ("clairvoyance", "eagle7"):
        given = {"method": method, "model": HEAD, "draft_attention_backend": 3}
        assert vllm(speculative=given).speculative == given
        assert f"{method!r}" in caplog.text
    assert "'draft_attention_backend'" in caplog.text
    caplog.clear()
    vllm(speculative={"method": "eagle", "model": HEAD, "num_speculative_tokens": 2})
    assert not caplog.text


def test_python_is_a_path_a_program_or_a_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert vllm().python() == sys.executable
    (tmp_path / "python").symlink_to(sys.executable)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert vllm(vllm_python="~/python").python() == str(tmp_path / "python")
    monkeypatch.setenv("VLLM_HOME_PYTHON", "~/python")
    assert vllm(vllm_python="VLLM_HOME_PYTHON").python() == str(tmp_path / "python")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert vllm(vllm_python="python").python() == str(tmp_path / "python")
    monkeypatch.delenv("VLLM_HOME_PYTHON")
    for missing, message in (("VLLM_HOME_PYTHON", "is not set"), (str(tmp_path / "no"), "there is no Python")):
        with pytest.raises(UserError, match=message) as error:
            vllm(vllm_python=missing)
        assert error.value.key == "vllm_python"


def test_missing_vllm_is_reported_by_the_real_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    has = subprocess.run([sys.executable, "-c", "import vllm"], capture_output=True, check=False)
    if has.returncode == 0:
        pytest.skip("this Python has vLLM")
    with pytest.raises(UserError, match="there is no vLLM in the environment of"):
        vllm().load()


def test_checking_options_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ianvs_specdec.plugin.settings import ModelSettings\n"
        f"ModelSettings.parse({{'model': {str(MODELS / 'cloud')!r}, 'backend': 'vllm', "
        f"'speculative': {{'method': 'eagle', 'model': {HEAD!r}}}}})\n"
        "assert not {'torch', 'transformers', 'vllm'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_synthetic_acceptance_is_lossy() -> None:
    from ianvs_specdec.common.types import Sampling

    speculative = {"method": "ngram", "num_speculative_tokens": 2}
    assert not vllm(speculative=speculative).lossy(Sampling())
    assert vllm(speculative={**speculative, "rejection_sample_method": "synthetic"}).lossy(Sampling())
