"""Isolation of programs under test, and the reported reasons of failures."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from ianvs_specdec.benchmarks import sandbox
from ianvs_specdec.benchmarks.sandbox import Limits

if os.name != "posix":
    pytest.skip("programs are run with limits only on POSIX systems", allow_module_level=True)

LIMITS = Limits(seconds=5)


@pytest.fixture(params=[sandbox.BWRAP, sandbox.LIMITS], autouse=True)
def confined(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With bubblewrap, where it works, and without."""
    if request.param == sandbox.LIMITS:
        monkeypatch.setattr(sandbox, "_bwrap", tuple)
    elif sandbox.BWRAP not in sandbox.confinement():
        pytest.skip("bubblewrap is not installed or does not work here")
    return str(request.param)


def run(source: str, limits: Limits = LIMITS) -> str:
    return sandbox.run(source, limits)


def test_a_program_without_end_ends() -> None:
    stubborn = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
    assert run(stubborn, Limits(seconds=1)) == "more than 1 s of processor time"
    assert run("import time\ntime.sleep(1000)", Limits(seconds=0.1)) == "not done after 1 s"


@pytest.mark.parametrize("source", ["x = [0] * 10**10", "x = []\nwhile True:\n    x.append(x[:])"])
def test_memory_is_limited(source: str) -> None:
    assert run(source, Limits(seconds=5, memory=1 << 28)) == "MemoryError"


@pytest.mark.parametrize(
    "source",
    [
        "import os\nwhile True:\n    os.fork()",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nos.posix_spawn('/bin/true', ['true'], {})",
        "import os\nos.kill(os.getppid(), 9)",
        "import ctypes\nctypes.CDLL(None).fork()",
        "import _posixsubprocess\n_posixsubprocess.fork_exec()",
        "import os\nopen(f'/proc/{os.getppid()}/environ').read()",
        "import os\nos.chdir('/')\nos.open(b'proc/self/environ', os.O_RDONLY)",
        "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (99, 99))",
        "import socket\nsocket.socket()",
    ],
)
def test_no_processes_no_signals_no_network(source: str) -> None:
    assert "must not do this" in run(source)


@pytest.mark.parametrize(
    "action",
    [
        "open({path!r}, 'w')",
        "open({path!r}, 'r+').write('x')",
        "os.open({path!r}, os.O_WRONLY | os.O_TRUNC)",
        "os.remove({path!r})",
        "os.rename({path!r}, {path!r} + '2')",
        "os.symlink({path!r}, {path!r} + '2')",
        "shutil.rmtree(os.path.dirname({path!r}))",
        "open('here.txt', 'w')",
    ],
)
def test_a_program_cannot_change_files(treasure: Path, action: str) -> None:
    source = f"import os, shutil\n{action.format(path=str(treasure))}"
    assert "must not do this" in run(source)


def test_a_program_sees_neither_environment_nor_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert run("import os\nassert 'sk-secret' not in str(os.environ)\nassert os.listdir('.') == []") == ""
    assert run("import numpy").startswith("ModuleNotFoundError")
    assert run("import ianvs_specdec").startswith("ModuleNotFoundError")
    assert run("import math, collections, itertools, re, heapq, hashlib, random, datetime, fractions") == ""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import sys\nsys.exit(0)", "SystemExit: 0"),
        ("exit = None\nimport os\nos._exit(0)", "exited early (exit status 0)"),
        ("def f():\n    return f()\nf()", "RecursionError"),
        ("this is no Python", "SyntaxError"),
        ("import os\nos.write = os._exit = None", ""),
        ("raise Exception('x' * 10**6)", "Exception: xxx"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "exited early"),
    ],
)
def test_ends_of_all_kinds(source: str, reason: str) -> None:
    found = run(source)
    assert found.startswith(reason)
    assert bool(found) == bool(reason)
    assert len(found) < 400


def test_much_output_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    source = "import os, sys\nfor _ in range(2000):\n    print('x' * 10_000)\n    os.write(2, b'y' * 10_000)"
    assert run(source) == ""
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("verdict", "end"),
    [("b'x' * 10_000", ""), ("""b'{"token": "0", "error": ""}'""", "os._exit(0)")],
    ids=["flood", "guess"],
)
def test_a_program_cannot_pass_by_writing_a_verdict(verdict: str, end: str) -> None:
    write = f"try:\n        os.write(number, {verdict})\n    except OSError:\n        pass"
    assert run(f"import os\nfor number in range(3, 64):\n    {write}\n{end}").startswith("exited early")


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
    opened, before = descriptors(), set(os.listdir(tempfile.gettempdir()))
    for source in ("", "raise ValueError", "import os\nos._exit(1)"):
        run(source)
    run("import time\ntime.sleep(99)", Limits(seconds=0.1))
    left = {name for name in set(os.listdir(tempfile.gettempdir())) - before if name.startswith("specdec-program-")}
    assert not left
    assert not descriptors() - opened


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if a program had got past everything that Python itself refuses."""
    text = sandbox._CHILD.read_text(encoding="utf-8").replace("    harden()\n", "")
    monkeypatch.setattr(sandbox, "_CHILD", tmp_path.parent / f"{tmp_path.name}.py")
    sandbox._CHILD.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "action",
    [
        "open({path!r}, 'a')",
        "open({path!r}).read()",
        "os.chmod('/usr/bin/env', 0o755)",
        "os.kill({pid}, 0)",
        "__import__('socket').create_connection(('127.0.0.1', {port}), 1)",
    ],
)
@pytest.mark.usefixtures("unguarded")
def test_bubblewrap_confines_without_python(treasure: Path, action: str, confined: str) -> None:
    if confined != sandbox.BWRAP:
        pytest.skip("limits alone do not confine such a program")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = run("import os\n" + action.format(path=str(treasure), pid=os.getpid(), port=port))
    assert found.startswith(
        ("PermissionError", "FileNotFoundError", "OSError", "ProcessLookupError", "ConnectionRefused")
    )


@pytest.mark.skipif(sys.platform != "linux", reason="finds processes under /proc")
def test_a_program_ends_with_the_job(tmp_path: Path, confined: str) -> None:
    """Even if the job is killed."""
    path = os.environ["PATH"] if confined == sandbox.BWRAP else ""
    asking = (
        "from ianvs_specdec.benchmarks.sandbox import *\n"
        f"run('import time\\nwhile True: time.sleep(1)  # {tmp_path}', Limits(0.3))"
    )
    process = subprocess.Popen([sys.executable, "-c", asking], env={"PATH": path, "TMPDIR": str(tmp_path)})
    until = time.monotonic() + 60
    while not folders_in_use(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert folders_in_use(tmp_path)
    process.kill()
    process.wait()
    while folders_in_use(tmp_path) and time.monotonic() < until:
        time.sleep(0.02)
    assert not folders_in_use(tmp_path)


def folders_in_use(parent: Path) -> list[str]:
    """Folders below ``parent`` that are the working directory of a process."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(process))
    return [folder for folder in found if folder.startswith(f"{parent}/specdec-program-")]
