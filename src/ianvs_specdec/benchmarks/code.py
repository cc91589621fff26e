"""Scorer ``code``: pass@1 of HumanEval (Chen et al. 2021): the program in an answer is run with the row's tests.

A row's answer is ``{"prompt": ..., "entry_point": name of the function, "test": source that defines check(function)}``.
Programs run only if the dataset processor permits it, each in a separate process (``sandbox.py``).
"""

from __future__ import annotations

import re
import textwrap
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ianvs_specdec.benchmarks.reasoning import without_reasoning
from ianvs_specdec.benchmarks.sandbox import Limits, run
from ianvs_specdec.records.identity import usable_processors

FIELDS = ("prompt", "entry_point", "test")
SECONDS = 5.0
"""Default processor time of a program."""

LONGEST = 100_000
"""Maximum number of characters of a program."""

_FENCED = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_COMPILING = threading.Lock()
"""Held while warnings are off, which affects all threads."""


def code(answers: Sequence[str], gold: Any) -> float | None:
    """100 if the last answer's program passes the tests, else 0; None unless programs may be run. ``gold["run"]``:
    seconds of processor time."""
    if not (isinstance(gold, Mapping) and gold.get("run")):
        return None
    return 100.0 * (not failure(answers[-1], gold, Limits(seconds=gold["run"])))


def run_all(pairs: Sequence[tuple[Sequence[str], Any]]) -> list[float | None]:
    """``code`` of many queries, one thread per processor."""
    with ThreadPoolExecutor(usable_processors(), thread_name_prefix="code") as pool:
        return list(pool.map(lambda pair: code(*pair), pairs))


def failure(answer: str, gold: Mapping[str, Any], limits: Limits) -> str:
    """Why the answer's program fails the row's tests; "" if it passes."""
    source = program(answer, gold["prompt"], gold["entry_point"])
    if source is None:
        return f"the answer has no program that defines {gold['entry_point']}"
    return run(f"{source}\n{gold['test']}\n\ncheck({gold['entry_point']})\n", limits)


def program(answer: str, prompt: str, entry_point: str) -> str | None:
    """The prompt completed by the answer's last fenced block, or the whole answer, that makes it valid Python; None if
    none does. A part either redefines the function, after the prompt's imports and helpers, or continues the prompt."""
    if not (answer := without_reasoning(answer)).strip() or len(answer) > LONGEST:
        return None
    definition = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", re.MULTILINE)
    blocks = [block for block in reversed(_FENCED.findall(answer)) if block.strip()]
    # Parts that define the function first; later blocks before earlier ones.
    for part in sorted(blocks or [answer], key=lambda part: definition.search(part) is None):
        defines = definition.search(part) is not None
        for source in _redefined(part, prompt, definition) if defines else _continued(part, prompt):
            if _compiles(source):
                return source
    return None


def _redefined(part: str, prompt: str, definition: re.Pattern[str]) -> Iterator[str]:
    """The prompt, whose function has only a docstring, followed by the function in the part."""
    whole = textwrap.dedent(part)
    found = definition.search(whole)
    for source in (whole, _first_block(whole[found.start() :]) if found else whole):
        yield f"{prompt}\n    pass\n\n{source}"


def _continued(part: str, prompt: str) -> Iterator[str]:
    """The prompt and the function's body, unchanged or indented."""
    part = part.strip("\n")
    # Some answers lack the indentation of the first line, some that of all lines.
    beginning, everything = f"    {part}", textwrap.indent(part, "    ")
    if part.startswith((" ", "\t")):
        bodies = [part]
    elif any(line and not line[0].isspace() for line in part.split("\n")[1:]):
        bodies = [everything, beginning]
    else:
        bodies = [beginning, everything]
    for body in bodies:
        yield prompt + body
    for body in bodies:
        yield prompt + _first_block(body)


def _first_block(source: str) -> str:
    """The lines up to the next unindented one, where the explanation starts."""
    lines = source.split("\n")
    end = next((i for i, line in enumerate(lines) if i and line.strip() and not line[0].isspace()), len(lines))
    return "\n".join(lines[:end])


def _compiles(source: str) -> bool:
    try:
        with _COMPILING, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "program.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
