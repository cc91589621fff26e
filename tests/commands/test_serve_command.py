"""``specdec serve`` before it serves: what is wrong with the command line is one message, and nothing is loaded."""

from __future__ import annotations

import argparse
import socket
import sys
from pathlib import Path

import pytest

from ianvs_specdec.commands import serve
from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import install_command
from tests.support.servers import make_certificate

pytest.importorskip("uvicorn", reason="needs the extra serve: pip install 'ianvs-specdec[serve]'")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder that looks like a model's, which must not be loaded."""
    monkeypatch.setattr("ianvs_specdec.backends.local.LocalLLM.load", lambda self: pytest.fail("the model was loaded"))
    folder = tmp_path / "some-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def message(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Traceback" not in error
    return error


def test_wrong_options_are_named(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, part in (
        ([], "no model"),
        (["--model", model, "--backend", "EagelSpecDec"], "--backend: unknown back end 'EagelSpecDec'. Did you mean"),
        (["--model", model, "--backend", "EagleSpecDec"], "head"),
        (["--model", model, "--set", "dtipe=float32"], "--set dtipe: unknown hyperparameter 'dtipe'. Did you mean"),
        (["--model", model, "--set", "threads"], "write it as --set key=value"),
        (["--model", model, "--set", "stop=[a"], "--set stop:1: not valid YAML"),
        (["--model", model, "--concurrency", "1025"], "--concurrency must be from 1 to 1024, not 1025"),
        (
            ["--model", model, "--backend", "huggingface", "--concurrency", "2"],
            "--concurrency 2: the back end huggingface takes one request at a time",
        ),
        (["--model", model, "--length", "4"], "--length: the back end autoregressive does not draft"),
        (["--model", model, "--backend", "PromptLookup", "--length", "fixd:4"], "unknown speculation length 'fixd'"),
        (["--model", model, "--deadline", "nan"], "--deadline must be more than 0"),
        (["--model", model, "--api-key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY (--api-key-env) holds no key"),
        (["--model", model, "--api-key-env", "sk-1"], "must be the name of an environment variable"),
        (["--model", model, "--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid:8000: "),
        (["--model", model, "--tls-cert", "x"], "--tls-cert and --tls-key belong together"),
        (["--model", model, "--tls-cert", "x", "--tls-key", "y"], "--tls-cert, --tls-key: x: No such file"),
    ):
        assert part in message(capsys, *arguments), arguments


def test_a_certificate_without_its_key(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    certificate, key = make_certificate(tmp_path / "one")
    _, other = make_certificate(tmp_path / "other")
    for pair, end in (((certificate, other), "(KEY_VALUES_MISMATCH)\n"), ((key, certificate), "without a password\n")):
        told = message(capsys, "--model", model, "--tls-cert", str(pair[0]), "--tls-key", str(pair[1]))
        assert f"--tls-cert {pair[0]}, --tls-key {pair[1]}: not a certificate and its key" in told
        assert told.endswith(end)


def test_file_and_line_of_a_wrong_setting(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cloud.yaml"
    for text, part in (
        (f"# a comment\nmodel: {model}\ntemperature: hot\n", f"{file}:3: temperature must be 0 (greedy) or a number"),
        (f"model: {model}\n\nthread: 1\n", f"{file}:3: unknown hyperparameter 'thread'"),
        ("model: [\n", f"{file}:2: not valid YAML"),
        (f"model: {model}\nbackend: EagleSpecDec\n", f"{file}: "),
    ):
        file.write_text(text)
        assert part in message(capsys, "--settings", str(file)), text


def test_a_port_in_use(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        error = message(capsys, "--model", model, "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in error


def test_a_missing_extra_is_named(
    model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("uvicorn", "starlette.applications", "prometheus_client"):
        with monkeypatch.context() as without:
            for name in [name for name in sys.modules if name.startswith("ianvs_specdec.serving")]:
                without.delitem(sys.modules, name)
            without.setitem(sys.modules, package, None)
            assert install_command("serve") in message(capsys, "--model", model)


def test_the_command_line_goes_before_the_file(model: str, tmp_path: Path) -> None:
    file = tmp_path / "cloud.yaml"
    file.write_text(f"model: {model}\nmax_tokens: 9\nseed: 3\nhead: {{EagleSpecDec: {tmp_path}}}\nprice_prompt: 0.1\n")
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    options = parser.parse_args(["--settings", str(file), "--set", "max_tokens=5", "--backend", "PromptLookup"])
    settings = serve._settings(options)
    assert (settings.general.model, settings.backend) == (model, "PromptLookup")
    assert (settings.sampling.max_tokens, settings.sampling.seed) == (5, 3)
