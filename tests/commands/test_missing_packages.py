"""What is said where a package is not installed: one line with what to do, whatever part of the program needs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ianvs_specdec.common.errors import missing_package_error, optional_import
from tests.support.paths import EXAMPLE

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
def test_the_host_says_what_it_lacks(package: str) -> None:
    expected = f"ianvs: the package {package} is not installed: pip install -r requirements.txt\n"
    assert started(package, "core.cmd.start", "-f", "job.yaml") == (2, expected)


@pytest.mark.slow
def test_the_command_says_what_it_lacks(tmp_path: Path) -> None:
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


def test_what_is_not_a_missing_package_remains_what_it_is() -> None:
    with pytest.raises(ModuleNotFoundError), optional_import():
        import ianvs_specdec.no_such_part  # noqa: F401
    wrapped = ValueError("no tokenizer")
    assert missing_package_error(wrapped) is None
    wrapped.__cause__ = ModuleNotFoundError("no", name="tokenizers.decoders")
    assert str(missing_package_error(wrapped)).startswith("the package tokenizers is not installed")
