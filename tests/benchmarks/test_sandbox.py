"""What programs under test cannot do to the machine, and how it is told how they ended."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from pathlib import Path

import pytest

from ianvs_specdec.benchmarks import sandbox
from ianvs_specdec.benchmarks.sandbox import Limits

if os.name != "posix":
    pytest.skip("programs are run with limits only on POSIX systems", allow_module_level=True)

LIMITS = Limits(seconds=5)


def run(source: str, limits: Limits) -> str:
    return sandbox.run(source, limits).error


def test_the_same_program_passes_or_fails_every_time() -> None:
    orders = {run("raise ValueError(list({'one', 'two', 'three', 'four', 'five'}))", LIMITS) for _ in range(3)}
    assert len(orders) == 1


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("while True:\n    pass", marks=pytest.mark.slow),
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
    ],
    ids=["plain", "stubborn"],
)
def test_an_endless_loop_ends(source: str) -> None:
    assert run(source, Limits(seconds=1)) == "more than 1 s of processor time"


def test_a_program_that_sleeps_ends() -> None:
    assert run("import time\ntime.sleep(1000)", Limits(seconds=0.1)) == "not done after 1 s"


@pytest.mark.parametrize(
    "source", ["x = [0] * 10**10", "x = 'a'\nwhile True:\n    x += x", "x = []\nwhile True:\n    x.append(x[:])"]
)
def test_memory_is_limited(source: str) -> None:
    assert run(source, Limits(seconds=5, memory=1 << 28)) == "MemoryError"


@pytest.mark.parametrize(
    "source",
    [
        "import os\nwhile True:\n    os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nos.execv('/bin/true', ['true'])",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
        "import os\nos.kill(os.getppid(), 9)",
        "import os, signal\nos.killpg(os.getpgid(os.getppid()), signal.SIGTERM)",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import ctypes\nctypes.CDLL(None).fork()",
        "import _posixsubprocess\n_posixsubprocess.fork_exec()",
        "import os\nopen(f'/proc/{os.getppid()}/environ').read()",
        "import os\nos.chdir('/')\nos.open(b'proc/self/environ', os.O_RDONLY)",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "import socket\nsocket.socket()",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1')",
    ],
)
def test_no_processes_no_signals_no_network(source: str) -> None:
    reason = run(source, LIMITS)
    assert "must not do this" in reason or reason.startswith("ModuleNotFoundError: No module named '_")


def test_a_program_cannot_connect(treasure: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        port = server.getsockname()[1]
        assert run(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))", LIMITS)
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    "action",
    [
        "open({path!r}, 'w')",
        "open({path!r}, 'a').write('x')",
        "open({path!r}, 'r+').write('x')",
        "open({path!r} + '2', 'x')",
        "os.open({path!r}, os.O_WRONLY | os.O_TRUNC)",
        "os.remove({path!r})",
        "os.unlink({path!r})",
        "os.rename({path!r}, {path!r} + '2')",
        "os.truncate({path!r}, 0)",
        "os.mkdir({path!r} + '2')",
        "os.symlink({path!r}, {path!r} + '2')",
        "os.link({path!r}, {path!r} + '2')",
        "shutil.rmtree(os.path.dirname({path!r}))",
        "pathlib.Path({path!r}).write_text('x')",
        "open('here.txt', 'w')",
    ],
)
def test_a_program_cannot_change_files(treasure: Path, action: str) -> None:
    source = f"import os, shutil, pathlib\n{action.format(path=str(treasure))}"
    assert "must not do this" in run(source, LIMITS)


def test_a_program_sees_neither_environment_nor_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert run("import os\nassert 'sk-secret' not in str(os.environ)\nassert os.listdir('.') == []", LIMITS) == ""
    assert run("import numpy", LIMITS).startswith("ModuleNotFoundError")
    assert run("import ianvs_specdec", LIMITS).startswith("ModuleNotFoundError")
    assert run("import math, collections, itertools, re, heapq, hashlib, random, datetime, fractions", LIMITS) == ""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("raise SystemExit", "SystemExit"),
        ("exit = None\nimport os\nos._exit(0)", "ended before its end (exit status 0)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise RuntimeError('at import')", "RuntimeError: at import"),
        ("def f():\n    return f()\nf()", "RecursionError"),
        ("input()", "EOFError"),
        ("this is no Python", "SyntaxError"),
        ("import os\nos.write = os._exit = None", ""),
        ("import json\njson.dumps = None", ""),
        ("raise Exception('x' * 10**6)", "Exception: xxx"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "ended before its end"),
    ],
)
def test_ends_of_all_kinds(source: str, reason: str) -> None:
    found = run(source, LIMITS)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)
    assert len(found) < 400


def test_much_output_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    source = "import os, sys\nfor _ in range(2000):\n    print('x' * 10_000)\n    os.write(2, b'y' * 10_000)"
    assert run(source, LIMITS) == ""
    assert capfd.readouterr() == ("", "")


def test_a_program_cannot_pass_by_flooding_the_verdict() -> None:
    flood = "try:\n        os.write(number, b'x' * 10_000)\n    except OSError:\n        pass"
    assert run(f"import os\nfor number in range(3, 64):\n    {flood}", LIMITS).startswith("ended before its end")


def test_a_program_cannot_pass_by_guessing_the_verdict() -> None:
    guess = """try:
        os.write(number, b'{"token": "0", "error": ""}')
    except OSError:
        pass"""
    source = f"import os\nfor number in range(3, 64):\n    {guess}\nos._exit(0)"
    assert run(source, LIMITS).startswith("ended before its end")


def test_root_becomes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ianvs_specdec.benchmarks.sandbox.sys.executable", "/usr/bin/python3")
    if not Path("/usr/bin/python3").is_file():
        pytest.skip("needs a Python that everybody may read: /usr/bin/python3")
    assert run("import os\nassert 0 not in (os.getuid(), os.geteuid(), os.getgid())", LIMITS) == ""
    # Only others than root are bound by the limit on processes.
    assert "can't start new thread" in run("import threading\nthreading.Thread(target=print).start()", LIMITS)


def descriptors() -> set[tuple[int, int, int]]:
    """Those of this process, each with the file that it is of: one that others close meanwhile, such as a socket that
    is collected, does not hide one that is left open."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # that of the listing itself
            stat = os.fstat(int(name))
            found.add((int(name), stat.st_dev, stat.st_ino))
    return found


def test_nothing_is_left_behind() -> None:
    before, opened = set(os.listdir(tempfile.gettempdir())), descriptors()
    for source in ("", "raise ValueError", "import os\nos._exit(1)"):
        run(source, LIMITS)
    run("import time\ntime.sleep(99)", Limits(seconds=0.1))
    left = {name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith("specdec-program-")}
    assert not left
    assert not descriptors() - opened
