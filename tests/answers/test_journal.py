"""The journal: nothing lost, nothing doubled, whatever happens to the process, the file or the disk."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.answers.configuration import Configuration, changes_of
from ianvs_specdec.answers.journal import Journal
from ianvs_specdec.errors import UserError
from ianvs_specdec.run import current_repeat
from ianvs_specdec.storage import lines as lines_module
from ianvs_specdec.types import Completion, Message, Step, Trace
from tests.support.paths import ROOT

HARDWARE = {"processor": "test"}


def messages(number: int) -> list[Message]:
    return [{"role": "user", "content": f"question {number} é\u2028"}]


def completion(text: str = "answer") -> Completion:
    trace = Trace([(0.1, 1), (0.2, 3)], [Step(3, 2, 3, 4)], near_ties=[(1, 0.0005)], bytes_up=7)
    return Completion(text, [5, 6, 7, 8], 9, 4, "stop", trace, truncated=2)


def configuration(**changes: Any) -> Configuration:
    value = {"backend": "specdec", "model": "abc", "sampling": {"temperature": 0.0}, **changes}
    return Configuration("models/edge", value)


def open_journal(path: Path, run: str = "run-1", fresh: bool = False) -> Journal:
    return Journal(path / "journal.jsonl", run, fresh)


def fill(path: Path, count: int, config: Configuration | None = None, run: str = "run-1") -> None:
    journal = open_journal(path, run)
    for number in range(count):
        journal.put(
            config or configuration(), messages(number), completion(f"answer {number}"), side="edge", hardware=HARDWARE
        )


def test_an_answer_comes_back_whole(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    entry = open_journal(tmp_path).get(configuration().key(messages(1)))
    assert entry is not None
    assert entry.completion == completion("answer 1")
    assert not entry.replayed
    assert open_journal(tmp_path).get(configuration().key(messages(7))) is None
    assert open_journal(tmp_path).record(entry.hardware)["value"] == HARDWARE


def test_configuration_and_machine_are_written_once(tmp_path: Path) -> None:
    fill(tmp_path, 20)
    fill(tmp_path, 1)
    lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert sum("config_id" in line for line in lines) == 1
    assert sum("hardware_id" in line for line in lines) == 1


@pytest.mark.parametrize(
    ("run", "fresh", "replayed"),
    [("run-1", False, False), ("run-2", False, True), ("run-1", True, False), ("run-2", True, None)],
)
def test_replayed_means_from_an_earlier_run_and_fresh_ignores_those(
    tmp_path: Path, run: str, fresh: bool, replayed: bool | None
) -> None:
    fill(tmp_path, 1)
    entry = open_journal(tmp_path, run, fresh).get(configuration().key(messages(0)))
    assert (entry.replayed if entry else None) is replayed


@pytest.mark.parametrize(
    "changes",
    [
        {"backend": "api"},
        {"model": "abd"},
        {"sampling": {"temperature": 0.1}},
        {"dtype": "bfloat16"},
        {"options": {"n": 3}},
    ],
)
def test_whatever_determines_the_answer_is_in_the_key(changes: dict[str, Any]) -> None:
    assert configuration(**changes).key(messages(0)) != configuration().key(messages(0))
    assert configuration().key(messages(1)) != configuration().key(messages(0))


def test_cut_off_at_every_byte_only_the_last_answer_is_lost_and_writing_goes_on(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, -1) + 1
    for end in range(last, len(whole)):
        path.write_bytes(whole[:end])
        journal = open_journal(tmp_path)
        kept = [journal.get(configuration().key(messages(number))) is not None for number in range(3)]
        assert kept == [True, True, False]
        journal.put(configuration(), messages(2), completion("again"), side="edge", hardware=HARDWARE)
        reopened = open_journal(tmp_path)
        texts = [reopened.get(configuration().key(messages(number))).completion.text for number in range(3)]
        assert texts == ["answer 0", "answer 1", "again"]
        assert reopened.corrupt == (0 if end in (last, len(whole) - 1) else 1)


def test_cut_off_inside_the_first_records(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    path = tmp_path / "journal.jsonl"
    whole = path.read_bytes()
    for end in range(0, whole.index(b'{"key"'), 7):
        path.write_bytes(whole[:end])
        fill(tmp_path, 2)
        journal = open_journal(tmp_path)
        assert all(journal.get(configuration().key(messages(number))) for number in range(2))
        assert journal.record(configuration().id) is not None


def test_damaged_lines_are_counted_and_reported_once_and_never_fatal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, 4)
    path = tmp_path / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"answer":{', b'"answer":[')
    lines.insert(3, b"\xff\xfe garbage\n")
    lines.insert(2, b"[1, 2]\n")
    lines.insert(2, b"\n")
    path.write_bytes(b"".join(lines))
    journal = open_journal(tmp_path)
    with caplog.at_level(logging.WARNING):
        found = [journal.get(configuration().key(messages(number))) is not None for number in range(4)]
    assert found == [True, False, True, True]
    assert journal.corrupt == 3
    assert len(caplog.records) == 1
    assert "damaged" in caplog.text


def test_a_second_writer_is_seen_without_reopening(tmp_path: Path) -> None:
    first = open_journal(tmp_path)
    assert first.get(configuration().key(messages(0))) is None
    fill(tmp_path, 1)
    assert first.get(configuration().key(messages(0))) is not None


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.answers.test_journal import configuration, completion, messages, HARDWARE
from ianvs_specdec.answers.journal import Journal
journal = Journal(Path(sys.argv[1]) / "journal.jsonl", sys.argv[2])
writer = configuration(writer=sys.argv[2])
for number in range(500):
    journal.put(writer, messages(number), completion(sys.argv[2]), side="edge", hardware=HARDWARE)
"""


def test_two_processes_append_five_hundred_answers_each(tmp_path: Path) -> None:
    code = WRITER.format(root=str(ROOT))
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name]) for name in ("left", "right")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    journal = open_journal(tmp_path)
    assert len(journal) == 1000
    assert journal.corrupt == 0
    for name in ("left", "right"):
        for number in range(500):
            assert journal.get(configuration(writer=name).key(messages(number))).completion.text == name


def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 2)
    before = (tmp_path / "journal.jsonl").read_bytes()
    journal = open_journal(tmp_path)

    class Full:
        def __init__(self, file: Any, raises: bool) -> None:
            self.file, self.raises = file, raises

        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, data: bytes) -> int:
            written = int(self.file.write(data[: len(data) // 2]))
            if self.raises:
                raise OSError(28, "No space left on device")
            return written

    for raises in (False, True):
        monkeypatch.setattr(
            lines_module,
            "open",
            lambda *a, raises=raises, **k: Full(open(*a, **k), raises),  # noqa: SIM115 - Full closes it
            raising=False,
        )
        with pytest.raises(UserError, match=r"cannot write the journal .*(disk is full|No space).*kept"):
            journal.put(configuration(), messages(2), completion(), side="edge", hardware=HARDWARE)
        monkeypatch.undo()
        assert (tmp_path / "journal.jsonl").read_bytes() == before
    journal.put(configuration(), messages(2), completion(), side="edge", hardware=HARDWARE)
    assert len(open_journal(tmp_path)) == 3


def test_a_workspace_that_cannot_be_written_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the journal"):
        Journal(tmp_path / "file" / "job" / "journal.jsonl", "run").ensure_writable()


def test_a_change_of_configuration_is_explained_once(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    fill(tmp_path, 2, configuration(backend="api", model="other", server="x"))
    journal = open_journal(tmp_path, run="run-2")
    warmer = configuration(sampling={"temperature": 0.7})
    why = journal.explain_miss(warmer, messages(0), "edge")
    assert why is not None
    assert "5 earlier answers" in why
    assert why.endswith("sampling.temperature 0.0 -> 0.7")
    assert "\n" not in why
    assert journal.explain_miss(warmer, messages(1), "edge") is None
    assert "the files of model models/edge changed" in str(
        journal.explain_miss(configuration(model="new"), messages(0), "edge")
    )
    assert journal.explain_miss(configuration(backend="huggingface"), messages(99), "edge") is None


def test_of_configurations_that_differ_as_much_the_one_with_the_most_answers_is_named(tmp_path: Path) -> None:
    for count, temperature in ((2, 0.1), (5, 0.2), (3, 0.3)):
        fill(tmp_path, count, configuration(sampling={"temperature": temperature}))
    why = open_journal(tmp_path, run="run-2").explain_miss(configuration(), messages(0), "edge")
    assert str(why).startswith("5 earlier answers")


def test_of_a_further_repeat_nothing_is_explained(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    journal = open_journal(tmp_path, run="run-2")
    assert journal.explain_miss(configuration(repeat=1), messages(0), "edge") is None
    assert journal.explain_miss(configuration(repeat=0), messages(0), "edge") is not None


@pytest.mark.parametrize(("text", "repeat"), [("", 0), ("0", 0), ("3", 3), ("-1", 0), ("three", 0)])
def test_the_repeat_comes_from_the_host(monkeypatch: pytest.MonkeyPatch, text: str, repeat: int) -> None:
    monkeypatch.setenv("IANVS_REPEAT", text)
    assert current_repeat() == repeat
    monkeypatch.delenv("IANVS_REPEAT")
    assert current_repeat() == 0


def test_whether_answers_can_be_kept_is_tried_again_only_after_a_write_has_failed(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.put(configuration(), messages(0), completion(), side="edge", hardware=HARDWARE)
    lock = Path(f"{journal.path}.lock")
    lock.unlink(missing_ok=True)
    journal.ensure_writable()
    assert not lock.exists(), "it was tried again"
    lock.mkdir()
    for _ in range(2):
        with pytest.raises(UserError, match="cannot write the journal"):
            journal.put(configuration(), messages(1), completion(), side="edge", hardware=HARDWARE)
    with pytest.raises(UserError, match="cannot write the journal"):
        journal.ensure_writable()


def test_no_explanation_within_a_run_or_for_a_half_answered_configuration(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    assert open_journal(tmp_path).explain_miss(configuration(backend="PromptLookup"), messages(0), "edge") is None
    assert open_journal(tmp_path, "run-2").explain_miss(configuration(), messages(9), "edge") is None


def test_a_job_outside_ianvs_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESULT_SAVED_URL", raising=False)
    with pytest.raises(UserError, match="RESULT_SAVED_URL"):
        Journal.of_job()


def test_the_mmlu_test_set_is_indexed_without_parsing_it(tmp_path: Path) -> None:
    """14,042 lines, one of them with an answer of 100 KB: the index holds keys and places, and no answer is parsed."""
    key, config = "a" * 64, "b" * 16
    answer = json.dumps(completion().to_json(), separators=(",", ":"))
    with (tmp_path / "journal.jsonl").open("w") as file:
        for number in range(14_042):
            text = "x" * 100_000 if number == 77 else "B"
            file.write(
                f'{{"key":"{number:064x}","config":"{config}","prompt":"{number:016x}","run":"old","side":"edge",'
                f'"hardware":"{config}","time":1.5,"answer":{answer.replace("answer", text)}}}\n'
            )
    journal = open_journal(tmp_path)
    parsed = []
    original = Completion.from_json
    Completion.from_json = lambda data: parsed.append(1) or original(data)  # type: ignore[assignment]
    try:
        started = time.process_time()
        assert len(journal) == 14_042
        seconds = time.process_time() - started
        assert not parsed
        assert len(journal.get(f"{77:064x}").completion.text) == 100_000
        assert journal.get(key) is None
    finally:
        Completion.from_json = original  # type: ignore[method-assign]
    print(f"indexed in {seconds:.3f} s of processor time")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
def test_killed_while_writing_at_random_moments(tmp_path: Path) -> None:
    code = WRITER.format(root=str(ROOT))
    count = 0
    for attempt in range(5):
        writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), "left"])
        deadline = time.monotonic() + 30
        path = tmp_path / "journal.jsonl"
        size = path.stat().st_size if path.exists() else 0
        while (
            path.stat().st_size if path.exists() else 0
        ) < size + 3000 + 997 * attempt and time.monotonic() < deadline:
            time.sleep(0.01)
        writer.kill()
        writer.wait()
        journal = open_journal(tmp_path)
        assert len(journal) >= count
        count = len(journal)
        assert journal.corrupt == 0
    assert count > 0


def test_what_changed_is_told_in_the_names_of_today() -> None:
    before = {"backend": "EagleSpecDec", "model": "abc", "options": {"top_k": 4}}
    after = Configuration("m", {**before, "options": {"top_k": 5}})
    assert changes_of({"value": before, "model": "m"}, after) == ["options.eagle_topk 4 -> 5"]
