"""``specdec link``: options, the relay and its record, errors."""

from __future__ import annotations

import json
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ianvs_specdec.commands.cli import main
from tests.net.link.conftest import PATIENCE, asked, echo
from tests.support.servers import Listener


@contextmanager
def linked(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A link in a process of its own, and where it listens."""
    command = [sys.executable, "-m", "ianvs_specdec", "link", "--listen", "127.0.0.1:0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().split()[2].rstrip(",")
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_link_relays_and_writes_its_record_at_the_end(number: int, tmp_path: pathlib.Path) -> None:
    server, record, file = Listener(echo), tmp_path / "link.jsonl", tmp_path / "path.json"
    file.write_text(json.dumps({"preset": "lan", "seed": 7, "delay": "2ms"}))
    options = ("-f", str(file), "--delay", "1ms", "--record", str(record))
    with linked("--to", f"127.0.0.1:{server.port}", *options) as (process, address):
        assert asked(address, b"hello") == [b"hello"]
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    server.close()
    head, connection, end = [json.loads(line) for line in record.read_text().splitlines()]
    assert [head["link"][name] for name in ("preset", "seed", "delay", "up")] == ["lan", 7, 0.001, 1e9]
    assert connection["up"]["bytes"] == end["summary"]["down"]["bytes"] == 5


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--delay=-1ms"], "--delay: delay must be from 0 to 60 s"),
        (["--listen", "nowhere"], "--listen must be written as 127.0.0.1:8000"),
        (["-f", "none.yaml"], "none.yaml: cannot be read"),
        (["--record", "no/such/folder/link.jsonl"], "--record no/such/folder/link.jsonl cannot be written"),
    ],
)
def test_errors_are_one_message(more: list[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["link", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", *more]) == 2
    assert part in capsys.readouterr().err


def test_errors_of_a_file_have_a_line(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "path.yaml"
    file.write_text("preset: lte\ndelay: 30\n")
    assert main(["link", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "-f", str(file)]) == 2
    assert f"{file}:2: delay must be written as 25ms or 0.5s, not 30" in capsys.readouterr().err


def test_a_port_in_use_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["link", "--listen", where, "--to", "127.0.0.1:1"]) == 2
    assert f"cannot listen on {where}: Address already in use; choose another address" in capsys.readouterr().err
