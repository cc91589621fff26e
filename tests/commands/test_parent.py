"""Servers with --exit-with-parent end when their standard input does."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ianvs_specdec.commands.server_arguments import watch_parent
from ianvs_specdec.common.errors import UserError
from tests.support.paths import EXAMPLE


def test_an_input_that_has_no_end_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with (tmp_path / "file").open() as given:
        monkeypatch.setattr(sys, "stdin", given)
        with pytest.raises(UserError, match="standard input must be a pipe"):
            watch_parent()


@pytest.mark.parametrize("server", ["serve", "verifier"])
def test_a_server_whose_owner_is_gone_ends_while_it_loads(server: str) -> None:
    model = str(EXAMPLE / "models" / "edge")
    command = [sys.executable, "-m", "ianvs_specdec", server, "--model", model, "--port", "0", "--exit-with-parent"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert not done.stdout
