"""``specdec`` itself: help, missing packages, --exit-with-parent."""

from __future__ import annotations

import argparse
import importlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ianvs_specdec.commands.cli import COMMANDS
from ianvs_specdec.commands.server_arguments import watch_parent
from ianvs_specdec.common.errors import UserError, missing_package_error, optional_import
from tests.support.paths import EXAMPLE


def below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from below(sub)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    top = argparse.ArgumentParser(prog=f"specdec {command}")
    importlib.import_module(f"ianvs_specdec.commands.{command}").add_arguments(top)
    for parser in below(top):
        assert parser.format_help().startswith(f"usage: specdec {command}")


MODELS = EXAMPLE / "models"
WITHOUT = """
import sys
package, run, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
sys.modules[package] = None
import importlib
sys.argv = ["program", *arguments]
sys.exit(importlib.import_module(run).main())
"""


def started(package: str, run: str, *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command in a Python that lacks a package."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, package, run, *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize("package", ["numpy", "yaml"])
def test_missing_packages_of_the_host(package: str) -> None:
    expected = f"ianvs: the package {package} is not installed: pip install -r requirements.txt\n"
    assert started(package, "core.cmd.start", "-f", "job.yaml") == (2, expected)


@pytest.mark.slow
def test_missing_packages_of_specdec(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    for package, arguments, install in (
        ("numpy", ["report", "workspace"], "-r requirements.txt"),
        ("yaml", ["serve"], "-r requirements.txt"),
        ("transformers", ["datastore", "build", "--model", ".", "--world", "1", "--out", out], "-r requirements.txt"),
        (
            "huggingface_hub",
            ["data", "prepare", "mmlu", "--out", f"{out}.jsonl"],
            "'datasets>=4.0' 'huggingface-hub>=0.26'",
        ),
    ):
        expected = f"specdec {arguments[0]}: the package {package} is not installed: pip install {install}\n"
        assert started(package, "ianvs_specdec.commands.cli", *arguments) == (2, expected)


def test_other_import_errors_are_unchanged() -> None:
    with pytest.raises(ModuleNotFoundError), optional_import():
        import ianvs_specdec.no_such_part  # noqa: F401
    wrapped = ValueError("no tokenizer")
    assert missing_package_error(wrapped) is None
    wrapped.__cause__ = ModuleNotFoundError("no", name="tokenizers.decoders")
    assert str(missing_package_error(wrapped)).startswith("the package tokenizers is not installed")


def test_standard_input_must_be_a_pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (tmp_path / "file").open() as given:
        monkeypatch.setattr(sys, "stdin", given)
        with pytest.raises(UserError, match="standard input must be a pipe"):
            watch_parent()


@pytest.mark.parametrize("server", ["serve", "verifier"])
def test_a_server_ends_with_its_parent_while_loading(server: str) -> None:
    model = str(EXAMPLE / "models" / "edge")
    command = [sys.executable, "-m", "ianvs_specdec", server, "--model", model, "--port", "0", "--exit-with-parent"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert not done.stdout
