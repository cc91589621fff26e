"""Programs are apart from their tests, and what the system keeps in where it can."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ianvs_specdec.benchmarks import sandbox
from ianvs_specdec.benchmarks.sandbox import Limits, Trial

if os.name != "posix":
    pytest.skip("programs are run with limits only on POSIX systems", allow_module_level=True)

LIMITS = Limits(seconds=5)


def run(source: str, limits: Limits) -> str:
    return sandbox.run(source, limits).error


# The program is apart from its tests


SHARED = "def shared(n):\n    return n + 1\n\ndef f(x):\n    '''Something.'''\n    pass\n"


def tried(source: str, tests: str, entry_point: str = "f") -> str:
    return sandbox.run(source, LIMITS, Trial(tests, entry_point, SHARED)).error


@pytest.mark.parametrize(
    ("body", "tests"),
    [
        ("return x", "for x in (None, True, 3, -(10**5000), 2.5, 'a\\ud800', b'b', 1j): assert f(x) == x"),
        ("return x", "x = [(1, {'a': {2, 3}}), frozenset('ab')]\nassert f(x) == x and type(f(x)[0]) is tuple"),
        ("return x", "import math\nassert math.isnan(f(math.nan)) and f(-math.inf) == -math.inf"),
        ("x.append(1)", "x = [0]\nassert f(x) is None and x == [0, 1]"),
        ("x.clear()", "x = {1: 2}\nf(x)\nassert x == {}"),
        ("return range(x)", "assert f(3) == range(3)"),
        ("return map(str, x)", "assert list(f([1])) == ['1'] and f([1]) != ['1']"),
        ("import collections\n    return collections.Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("import fractions\n    return fractions.Fraction(x, 2)", "assert f(1) == 0.5"),
        ("raise KeyError(x)", "try:\n    f(1)\n    assert False\nexcept KeyError:\n    pass"),
        (
            "class Own(Exception): pass\n    raise Own",
            "try:\n    f(1)\nexcept Exception as e:\n    assert 'Own' in repr(e)",
        ),
        ("print(x)\n    return x", "assert f(1) == shared(0)"),
    ],
)
def test_plain_values_go_there_and_back(body: str, tests: str) -> None:
    assert tried(f"def f(x):\n    {body}\n", tests) == ""


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("def f(x):\n    return object()", "AssertionError"),
        ("class E:\n    def __eq__(self, other): return True\ndef f(x):\n    return E()", "AssertionError"),
        ("class E(int):\n    def __eq__(self, other): return True\ndef f(x):\n    return E(3)", "AssertionError"),
        ("def f(x):\n    raise ValueError('no')", "ValueError: no"),
        ("def f(x):\n    raise SystemExit(0)", "SystemExit: 0"),
        ("def f(x):\n    import os\n    os._exit(0)", "ended before its end (exit status 0)"),
        ("def f(x):\n    return f(x)", "RecursionError"),
        ("def f(x):\n    y = []\n    y.append(y)\n    return y", "RecursionError"),
        ("def g(x):\n    return x", "TypeError"),
        ("import sys\nfor frame in sys._current_frames().values():\n"
         "    while frame:\n        frame.f_locals.update(error='', held=[]); frame = frame.f_back\ndef f(x): return 0",
         "AssertionError"),
        ("import builtins\nbuiltins.AssertionError = KeyError\ndef f(x): return 0", "AssertionError"),
    ],
)  # fmt: skip
def test_a_program_can_only_answer(source: str, reason: str) -> None:
    assert tried(source, "assert f(2) == 2").startswith(reason)


@pytest.mark.parametrize(
    "line",
    [
        '{"error": "", "held": []}', '{"value": ["list", 3], "args": [1]}', '{"value": ["exec", "x"], "args": [1]}',
        "[]", '{"value": 2}', '{"raised": 5, "text": 5}', "9" * 100, '{"value": ["int", 5], "args": [1]}',
    ],
)  # fmt: skip
def test_what_a_program_says_in_place_of_an_answer(line: str) -> None:
    say = f"import os\ndef f(x):\n    for n in range(3, 64):\n        try: os.write(n, {line!r}.encode() + b'\\n')\n"
    assert tried(f"{say}        except OSError: pass\n    os._exit(0)\n", "assert f(2) == 2") != ""


def test_the_program_does_not_know_what_is_expected() -> None:
    """Neither among its objects, nor in its memory, nor in what it can read."""
    source = (
        "import gc, sys\ndef f(x):\n    found = str([o for o in gc.get_objects() if isinstance(o, (dict, list))])\n"
        "    frame = sys._getframe()\n    while frame:\n        found += str(frame.f_locals); frame = frame.f_back\n"
        "    return 'exp' + 'ected42' in found\n"
    )
    assert tried(source, "secret = 'expected42'\nassert f(1) is False") == ""


def test_tests_that_cannot_be_run() -> None:
    assert tried("def f(x): return x", "this is no Python").startswith("SyntaxError")
    assert "the tests hand over a function" in tried("def f(x): return x", "f(lambda: 1)")
    assert tried("def f(x): return x", "import os\nos._exit(0)").startswith("the tests ended before their end")


# What the system keeps in, where it can


@functools.cache
def held() -> tuple[str, ...]:
    return sandbox.run("", LIMITS).held


LIBC = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
"""


@pytest.fixture
def unguarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a program had got past everything that Python itself refuses."""
    begin = sandbox._BEGIN.replace(
        "del sys.path[0]",
        "from ianvs_specdec.benchmarks.sandboxed import program; program.harden = int; del sys.path[0]",
    )
    monkeypatch.setattr(sandbox, "_BEGIN", begin)


def needs(*measures: str) -> None:
    if missing := set(measures) - set(held()):
        pytest.skip(f"this system does not permit {', '.join(sorted(missing))}")


@pytest.mark.parametrize(
    "action",
    [
        "os.mknod({path!r} + '2')",
        "os.mkfifo({path!r} + '2')",
        "os.mkdir({path!r} + '2')",
        "os.symlink('/', {path!r} + '2')",
        "os.chmod({path!r}, 0)",
        "os.utime({path!r}, (0, 0))",
        "os.rename({path!r}, {path!r} + '2')",
        "os.remove({path!r})",
        "open({path!r}, 'a')",
        "open({path!r}).read()",
        "os.listdir(os.path.dirname({path!r}))",
        "open('/etc/passwd').read()",
        "os.execv('/bin/true', ['true'])",
        "open('/proc/self/environ').read()",
        "os.open('self/environ', os.O_RDONLY, dir_fd=os.open('/proc', os.O_PATH))",
        "os.listdir('/proc')",
        "os.mkfifo('/dev/shm/specdec-fifo')",
        "__import__('socket').create_connection(('127.0.0.1', 1), 1)",
    ],
)
@pytest.mark.usefixtures("unguarded")
def test_what_is_kept_in_without_python(treasure: Path, action: str) -> None:
    needs("namespaces", "landlock")
    found = run(f"import os\n{action.format(path=str(treasure))}", LIMITS)
    assert found.startswith(("PermissionError", "OSError: [Errno 30]", "BlockingIOError", "OSError: [Errno 101]"))


@pytest.mark.usefixtures("unguarded")
def test_no_other_process_is_in_sight() -> None:
    needs("namespaces")
    assert run("import os\nassert (os.getpid(), os.getppid()) == (1, 0)", LIMITS) == ""
    for number in (os.getpid(), os.getppid(), -1):
        source = f"import os, signal\nsignal.pidfd_send_signal(os.pidfd_open({number}), 9)"
        assert run(source, LIMITS).startswith(("ProcessLookupError", "OSError"))
        assert run(f"import os\nos.kill({number}, 0)", LIMITS).startswith("ProcessLookupError")


@pytest.mark.usefixtures("unguarded")
def test_rights_of_the_own_namespace_undo_nothing(treasure: Path) -> None:
    needs("namespaces", "landlock")
    remount = "libc.mount(None, b'/', None, 32 | 4096, None)"
    nested = "libc.unshare(0x10000000 | 0x20000)"
    for source in (
        f"assert {remount} == -1",
        f"{nested}\nassert {remount} == -1",
        "assert libc.umount2(b'/proc', 2) == -1",
        "assert libc.setuid(0) == -1",
        "assert libc.ptrace(16, os.getppid(), 0, 0) == -1",
    ):
        assert run(f"{LIBC}{source}\n", LIMITS) == ""
    assert run(f"{LIBC}{nested}\nopen({str(treasure)!r}, 'a')", LIMITS).startswith(("PermissionError", "OSError"))


def test_a_program_dies_with_who_asked_for_it(tmp_path: Path) -> None:
    asking = (
        "from ianvs_specdec.benchmarks.sandbox import *\nrun('import time\\nwhile True: time.sleep(1)', Limits(60))"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", asking], env=environment)
    try:
        until = time.monotonic() + 60
        while len(processes(tmp_path)) < 3 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(list(tmp_path.iterdir())) == 1
    finally:
        process.kill()
        process.wait()
    while (processes(tmp_path) or list(tmp_path.iterdir())) and time.monotonic() < until:
        time.sleep(0.02)
    assert not processes(tmp_path)
    assert not list(tmp_path.iterdir())


def processes(folder: Path) -> list[str]:
    """Those of sandboxes whose folders are made in this one."""
    listing = subprocess.run(["ps", "-eo", "pid,args", "-ww"], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if line.endswith(str(folder))]
