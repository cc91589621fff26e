"""Whatever a journal's lines hold, they are answers or count as damaged; what another version or editor did is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.answers.journal import Journal
from ianvs_specdec.answers.lines import FILE_NAME, failure_in
from ianvs_specdec.errors import AnswerError
from ianvs_specdec.identity import FileDigests
from ianvs_specdec.types import Completion, Step, Trace
from ianvs_specdec.workspace.kept import KeptAnswers
from tests.answers.test_journal import HARDWARE, configuration, messages

ANYTHING = [
    None,
    True,
    -1,
    7,
    0.5,
    10**400,
    "",
    "text",
    "\ud800",
    [],
    [[]],
    [None],
    [1, "x"],
    [[1, 2, 3, 4, 5]],
    {},
    {"a": []},
]
RAW = ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "[" * 5000 + "]" * 5000]
"""Values that are written as no JSON that we write."""


def whole_answer() -> Completion:
    trace = Trace(
        [(0.1, 1), (0.2, 3)], [Step(3, 2, 3, 4)], [(1, 0.0005)], 7, 8, [(1, 2)], [(0.5, "HTTP 500")], 1.5, 0.25, 99,
        "fused", [(-0.5, 1.0, 0.1)], [4], None, [9, 4],
    )  # fmt: skip
    return Completion("answer", [5, 6, 7, 8], 9, 4, "stop", trace, truncated=2, cached_tokens=3)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value within a JSON value, lists and objects too."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def with_value(record: Any, path: tuple[Any, ...], text: str) -> bytes:
    """The record's line, with this text of JSON at a place of it."""
    mark = "\0mark"
    copy = json.loads(json.dumps(record))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = mark
    return json.dumps(copy, separators=(",", ":")).replace(json.dumps(mark), text).encode() + b"\n"


def written(folder: Path, count: int = 1) -> list[bytes]:
    journal = Journal(folder / FILE_NAME, "run-1")
    for number in range(count):
        journal.put(configuration(), messages(number), whole_answer(), side="edge", hardware=HARDWARE)
    return journal.path.read_bytes().splitlines(keepends=True)


KEYS = [configuration().key(messages(number)) for number in range(3)]


def use(folder: Path) -> Journal:
    """Do with a journal all that runs and reports do; nothing may be raised."""
    journal = Journal(folder / FILE_NAME, "run-2")
    entry = journal.get(KEYS[0])
    if entry is not None:
        trace = entry.completion.trace
        assert isinstance(entry.completion.text, str)
        assert sum(entry.completion.token_ids) + trace.tokens + entry.completion.cached_tokens < 1e300
        assert sum(step.drafted + step.emitted for step in trace.steps) < 1e300
        assert (trace.latency or 0) + (trace.busy or 0) + (trace.issued or 0) + (trace.memory or 0) < 1e300
        assert all(isinstance(what, str) and seconds < 1e300 for seconds, what in trace.failures)
        entry.completion.to_json()
        journal.record(entry.hardware)
    journal.explain_miss(configuration(backend="other"), messages(0))
    len(journal)
    kept = KeptAnswers(folder)
    kept.failures("edge", "no answer")
    for config in kept.configurations({"model": "models/edge"}) + kept.alike(KEYS[0]):
        kept.answers(_query(), [config])
    kept.answer("models/edge", messages(0))
    return journal


def _query() -> Any:
    from ianvs_specdec.types import Query

    return Query((messages(0)[0]["content"],))


def alike(value: Any, original: Any) -> bool:
    """Whether a value may stand where the original did."""
    if isinstance(original, (int, float)):
        return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300)
    return value is None or type(value) is type(original)


def test_any_value_in_any_field_of_an_answer_ends_nothing(tmp_path: Path) -> None:
    *records, answer = written(tmp_path)
    record = json.loads(answer)
    damaged = 0
    for path in places(record):
        # Deep within, all that matters is the kind of value.
        for text in (*map(json.dumps, ANYTHING), *RAW) if len(path) < 4 else ("null", '"x"', "[1]", "-1.5", "NaN"):
            (tmp_path / FILE_NAME).write_bytes(b"".join([*records, with_value(record, path, text)]))
            journal = use(tmp_path)
            damaged += journal.corrupt
            assert journal.corrupt <= 2
            if path[0] == "answer" and journal.get(KEYS[0]) is not None:
                original = record
                for key in path:
                    original = original[key]
                assert alike(json.loads(text), original), (path, text)
    assert damaged > 200


def test_any_value_in_any_field_of_the_other_lines_ends_nothing(tmp_path: Path) -> None:
    journal = Journal(tmp_path / FILE_NAME, "run-1")
    journal.put_failure(KEYS[1], AnswerError("no answer", [(0.5, "HTTP 500")]), side="edge")
    lines = written(tmp_path)
    for number, line in enumerate(lines[:-1]):
        record = json.loads(line)
        for path in places(record):
            for text in (*map(json.dumps, ANYTHING), *RAW):
                changed = [*lines[:number], with_value(record, path, text), *lines[number + 1 :]]
                (tmp_path / FILE_NAME).write_bytes(b"".join(changed))
                assert use(tmp_path).get(KEYS[0]) is not None, "the answer is whole"


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b"\n", b"\r\n"),
        lambda line: line.replace(b"}\n", b',"newer":{"x":[1]}}\n'),
        lambda line: line.replace(b"{", b'{"newer":1,', 1),
        lambda line: line.replace(b'"side"', b'"newer":null,"side"'),
        lambda line: line.replace(b'"answer":{', b'"answer":{"newer":[1],'),
        lambda line: line.replace(b'"trace":{', b'"trace":{"newer":"x",'),
        lambda line: line.replace(b"}}}\n", b'},"newer":5}}\n'),
        lambda line: json.dumps(json.loads(line), indent=None, sort_keys=True).encode() + b"\n",
        lambda line: b"  " + line,
    ],
    ids=["CRLF", "last", "first", "before side", "answer", "trace", "after the trace", "sorted", "indented"],
)
def test_what_another_version_or_an_editor_made_of_the_lines_is_read(tmp_path: Path, change: Any) -> None:
    journal = Journal(tmp_path / FILE_NAME, "run-1")
    journal.put_failure(KEYS[2], AnswerError("no answer", [(0.5, "HTTP 500")]), side="edge")
    lines = written(tmp_path, 2)
    (tmp_path / FILE_NAME).write_bytes(b"".join(map(change, lines)))
    journal = Journal(tmp_path / FILE_NAME, "run-2")
    for key in KEYS[:2]:
        entry = journal.get(key)
        assert entry is not None
        assert entry.completion == whole_answer()
        assert entry.replayed
        assert journal.record(entry.hardware)["value"] == HARDWARE
    assert journal.corrupt == 0
    assert journal.explain_miss(configuration(), messages(0)) is None
    kept = KeptAnswers(tmp_path)
    assert kept.failures("edge", "no answer") == [[0.5, "HTTP 500"]]
    assert kept.answer("models/edge", messages(1)) == "answer"
    journal.put(configuration(), messages(2), whole_answer(), side="edge", hardware=HARDWARE)
    assert len(Journal(tmp_path / FILE_NAME, "run-3")) == 3


def test_an_answer_of_an_older_version_is_read(tmp_path: Path) -> None:
    *records, answer = written(tmp_path)
    record = json.loads(answer)
    record["answer"]["trace"] = {"chunks": [[0.5, 2]], "steps": [], "near_ties": []}
    del record["answer"]["truncated"]
    (tmp_path / FILE_NAME).write_bytes(b"".join(records) + json.dumps(record, separators=(",", ":")).encode() + b"\n")
    entry = Journal(tmp_path / FILE_NAME, "run-2").get(KEYS[0])
    assert entry is not None
    assert entry.completion.truncated == 0


def routed(folder: Path) -> bytes:
    Journal(folder / FILE_NAME, "run-1").put_overhead(KEYS[1], 0.00125)
    line = (folder / FILE_NAME).read_bytes()
    (folder / FILE_NAME).unlink()
    return line


@pytest.mark.parametrize("seconds", ["0..1", "1.2.3", ".", "1e5e5", "1e999", "-1.0", "NaN", '"x"', "null", "9" * 5000])
def test_a_router_s_time_that_is_no_time_counts_as_damaged(tmp_path: Path, seconds: str) -> None:
    line = routed(tmp_path).replace(b"0.00125", seconds.encode())
    (tmp_path / FILE_NAME).write_bytes(line + b"".join(written(tmp_path)))
    journal = use(tmp_path)
    assert journal.overhead(KEYS[1]) is None
    assert journal.get(KEYS[0]) is not None
    assert journal.corrupt == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line.replace(b"\n", b"\r\n"),
        lambda line: line.replace(b"}\n", b',"newer":{"x":[1]}}\n'),
        lambda line: line.replace(b"0.00125", b"1.25e-3"),
        lambda line: json.dumps(json.loads(line), sort_keys=True).encode() + b"\n",
    ],
    ids=["CRLF", "newer", "exponent", "sorted"],
)
def test_a_router_s_time_that_another_version_or_an_editor_wrote_is_read(tmp_path: Path, change: Any) -> None:
    line = change(routed(tmp_path))
    (tmp_path / FILE_NAME).write_bytes(line)
    journal = Journal(tmp_path / FILE_NAME, "run-2")
    assert journal.overhead(KEYS[1]) == 0.00125
    assert journal.corrupt == 0


def test_bytes_that_are_no_text_cost_their_line(tmp_path: Path) -> None:
    line, lines = routed(tmp_path), written(tmp_path, 2)
    damaged = [text.replace(b'"run":"run-1"', b'"run":"run\xff1"') for text in (line, lines[-1])]
    (tmp_path / FILE_NAME).write_bytes(b"".join([*lines[:-1], *damaged]))
    journal = use(tmp_path)
    assert journal.get(KEYS[0]) is not None
    assert journal.get(KEYS[1]) is None
    assert journal.corrupt == 2


@pytest.mark.parametrize("options", ["x", [1], 7, True, {"acceptance": [1]}])
def test_options_of_a_configuration_that_are_none_end_no_report(tmp_path: Path, options: Any) -> None:
    Journal(tmp_path / FILE_NAME, "run-1").put(
        configuration(options=options), messages(0), whole_answer(), side="edge", hardware=HARDWARE
    )
    assert KeptAnswers(tmp_path).alike(configuration(options=options).key(messages(0)))


def test_zeros_that_a_power_cut_leaves_cost_one_line(tmp_path: Path) -> None:
    lines = written(tmp_path, 2)
    (tmp_path / FILE_NAME).write_bytes(b"".join(lines) + b"\0" * 5000)
    journal = Journal(tmp_path / FILE_NAME, "run-2")
    journal.put(configuration(), messages(2), whole_answer(), side="edge", hardware=HARDWARE)
    assert all(journal.get(key) for key in KEYS)
    assert journal.corrupt == 1


def test_a_failure_line_is_whole_or_none() -> None:
    assert failure_in(b'{"failed":"x","side":"edge","error":"no","failures":[]}\n') == ("edge", "no", [])
    assert failure_in(b'{"failed":"x","side":[],"error":"no","failures":[]}\n') is None


@pytest.mark.parametrize("text", [*map(json.dumps, ANYTHING), *RAW, "nonsense"])
def test_any_memory_of_digests_is_no_error(tmp_path: Path, text: str) -> None:
    file, memory = tmp_path / "model", tmp_path / "digests.json"
    file.write_text("weights")
    wanted = FileDigests(tmp_path / "none").file(file)
    status = file.stat()
    for content in (text, f'{{"{file}": {text}}}', f'{{"{file}": [{status.st_size}, {status.st_mtime_ns}, {text}]}}',
                    f'{{"{file}": [{status.st_size}, {status.st_mtime_ns}]}}'):  # fmt: skip
        memory.write_text(content)
        assert FileDigests(memory).file(file) == wanted
