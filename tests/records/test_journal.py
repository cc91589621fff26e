"""The journal: nothing lost, nothing doubled, whatever happens to the process, the file or the disk."""

from __future__ import annotations

import os
import random
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Completion, Message, Step, Trace
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.database import FILE_NAME
from ianvs_specdec.records.journal import Journal, export_entries, read_answers
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
    return Journal(path / FILE_NAME, run, fresh)


def fill(path: Path, count: int, config: Configuration | None = None, run: str = "run-1") -> None:
    journal = open_journal(path, run)
    for number in range(count):
        answer = completion(f"answer {number}")
        journal.put(config or configuration(), messages(number), answer, side="edge", hardware=HARDWARE)
    journal.release()


def test_an_answer_is_restored_whole(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    entry = open_journal(tmp_path).get(configuration().key(messages(1)))
    assert entry is not None
    assert entry.completion == completion("answer 1")
    assert not entry.replayed
    assert open_journal(tmp_path).get(configuration().key(messages(7))) is None
    assert open_journal(tmp_path).record(entry.hardware)["value"] == HARDWARE


def test_an_export_has_all_entries(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    fill(tmp_path, 1)
    open_journal(tmp_path).put_failure(configuration().key(messages(7)), AnswerError("none", [(0.5, "x")]), side="edge")
    entries = list(export_entries(tmp_path / FILE_NAME))
    assert [entry["value"] for entry in entries[:2]] == [configuration().value, HARDWARE]
    assert [entry["answer"]["text"] for entry in entries[2:5]] == ["answer 0", "answer 1", "answer 0"]
    assert entries[4]["key"] == configuration().key(messages(0))
    assert (entries[5]["error"], entries[5]["failures"]) == ("none", [[0.5, "x"]])
    assert len(entries) == 6
    assert [answer.text for answer in read_answers(tmp_path / FILE_NAME)] == ["answer 0", "answer 1", "answer 0"]


@pytest.mark.parametrize(
    ("run", "fresh", "replayed"),
    [("run-1", False, False), ("run-2", False, True), ("run-1", True, False), ("run-2", True, None)],
)
def test_replayed_answers_are_of_earlier_runs(tmp_path: Path, run: str, fresh: bool, replayed: bool | None) -> None:
    fill(tmp_path, 1)
    entry = open_journal(tmp_path, run, fresh).get(configuration().key(messages(0)))
    assert (entry.replayed if entry else None) is replayed


def test_the_newest_answer_counts_despite_read_ahead(tmp_path: Path) -> None:
    fill(tmp_path, 120)
    newer = open_journal(tmp_path)
    for number in (5, 110):
        newer.put(configuration(), messages(number), completion("newer"), side="edge", hardware=HARDWARE)
    newer.put_failure(configuration().key(messages(6)), AnswerError("none"), side="edge")
    journal = open_journal(tmp_path)
    for number in range(120):
        if number == 10:
            journal.put(configuration(), messages(12), completion("newer"), side="edge", hardware=HARDWARE)
        found = journal.get(configuration().key(messages(number)))
        text = "newer" if number in (5, 12, 110) else f"answer {number}"
        assert found is not None
        assert found.completion.text == text


def intact(path: Path, count: int) -> list[int]:
    """The numbers of the answers that a reader finds. None may be wrong."""
    journal = open_journal(path, "later")
    found = []
    for number in range(count):
        if (entry := journal.get(configuration().key(messages(number)))) is not None:
            assert entry.completion == completion(f"answer {number}")
            found.append(number)
    return found


def test_flipped_bits_replay_no_wrong_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 60)
    path, found = tmp_path / FILE_NAME, []
    whole = path.read_bytes()
    for place in range(7, len(whole), len(whole) // 150):
        caplog.clear()
        remove_journal(path)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        found.append(len(intact(tmp_path, 60)))
        assert len(caplog.records) <= 1
        # Missing answers are generated again and stored.
        fill(tmp_path, 60, run="again")
        assert intact(tmp_path, 60) == list(range(60))
    assert sum(number == 60 for number in found) > len(found) / 4


def test_a_truncated_journal_is_recovered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 200)
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    for part in (0.9, 0.5, 0.1):
        caplog.clear()
        remove_journal(path)
        path.write_bytes(whole[: int(part * len(whole))])
        found = intact(tmp_path, 200)
        assert len(caplog.records) == 1
        assert "missing answers are generated again" in caplog.text
        assert part < 0.9 or len(found) > 60
        assert path.with_name(f"{FILE_NAME}.damaged").read_bytes().startswith(whole[: int(part * len(whole))])


def test_a_file_of_something_else_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"nonsense" * 1000)
    assert intact(tmp_path, 1) == []
    fill(tmp_path, 1)
    assert intact(tmp_path, 1) == [0]
    assert len(caplog.records) == 1


def remove_journal(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def test_answers_of_a_second_writer_are_visible(tmp_path: Path) -> None:
    first = open_journal(tmp_path)
    assert first.get(configuration().key(messages(0))) is None
    fill(tmp_path, 1)
    assert first.get(configuration().key(messages(0))) is not None


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.records.test_journal import configuration, completion, messages, HARDWARE
from ianvs_specdec.records.database import FILE_NAME
from ianvs_specdec.records.journal import Journal, read_answers, export_entries
journal = Journal(Path(sys.argv[1]) / FILE_NAME, sys.argv[2])
writer = configuration(writer=sys.argv[2])
for number in range(500):
    journal.put(writer, messages(number), completion(sys.argv[2]), side="edge", hardware=HARDWARE)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="needs limits of file sizes")
def test_a_full_disk_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    code = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.records.test_journal import HARDWARE, completion, configuration, messages, open_journal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = open_journal(Path({folder!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
for number in range(1000):
    try:
        journal.put(configuration(), messages(number), completion(f"answer {{number}}"), side="edge", hardware=HARDWARE)
    except Exception as error:
        print(number, type(error).__name__, error)
        break
"""
    code = code.format(root=str(ROOT), folder=str(tmp_path))
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    number, kind, message = output.split(" ", 2)
    assert kind == "UserError"
    assert re.search(r"cannot write the journal .*\. The answers already in it are kept\.", message)
    assert intact(tmp_path, int(number)) == list(range(int(number)))
    assert int(number) > 10


def test_an_unwritable_journal_is_one_message(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the journal"):
        Journal(tmp_path / "file" / "job" / FILE_NAME, "run").ensure_writable()


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
    changed = journal.explain_miss(configuration(model="new"), messages(0), "edge")
    assert "the files of model models/edge changed" in str(changed)


def test_of_equally_similar_configurations_the_largest_is_named(tmp_path: Path) -> None:
    for count, temperature in ((2, 0.1), (5, 0.2), (3, 0.3)):
        fill(tmp_path, count, configuration(sampling={"temperature": temperature}))
    why = open_journal(tmp_path, run="run-2").explain_miss(configuration(), messages(0), "edge")
    assert str(why).startswith("5 earlier answers")


def test_unrelated_configurations_are_not_explained(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    journal = open_journal(tmp_path, run="run-2")
    other_model = Configuration("models/other", {**configuration().value, "model": "new"})
    for other, side in (
        (configuration(backend="huggingface"), "edge"),
        (configuration(method="eagle"), "edge"),
        (other_model, "edge"),
        (configuration(sampling={"temperature": 0.5}), "cloud"),
    ):
        assert journal.explain_miss(other, messages(0), side) is None
    # A test case of this run still has it.
    journal.get(configuration().key(messages(0)))
    assert journal.explain_miss(configuration(length="fixed:4"), messages(0), "edge") is None


def test_misses_of_further_repeats_are_not_explained(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    journal = open_journal(tmp_path, run="run-2")
    assert journal.explain_miss(configuration(repeat=1), messages(0), "edge") is None
    assert journal.explain_miss(configuration(repeat=0), messages(0), "edge") is not None


def test_a_journal_in_a_folder_without_write_permission_is_read(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    code = """
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.records.test_journal import HARDWARE, completion, configuration, intact, messages, open_journal
if os.getuid() == 0:
    os.setuid(65534)
print(intact(Path({folder!r}), 3))
try:
    open_journal(Path({folder!r})).put(configuration(), messages(9), completion(), side="edge", hardware=HARDWARE)
except Exception as error:
    print(type(error).__name__, error)
"""
    os.chmod(tmp_path, 0o555)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        os.chmod(parent, parent.stat().st_mode | 0o055)
    code = code.format(root=str(ROOT), folder=str(tmp_path))
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    os.chmod(tmp_path, 0o755)
    if "PermissionError" in output.stderr:
        pytest.skip("another user cannot read the sources")
    read, refused = output.stdout.splitlines()
    assert read == "[0, 1, 2]"
    assert refused.startswith("UserError cannot write the journal ")


def test_misses_within_a_run_or_configuration_are_not_explained(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    assert open_journal(tmp_path).explain_miss(configuration(backend="PromptLookup"), messages(0), "edge") is None
    assert open_journal(tmp_path, "run-2").explain_miss(configuration(), messages(9), "edge") is None


def test_a_model_outside_ianvs_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RESULT_SAVED_URL", raising=False)
    with pytest.raises(UserError, match="RESULT_SAVED_URL"):
        Journal.of_job()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
def test_two_writers_killed_at_random_moments(tmp_path: Path) -> None:
    """Answers that a writer has reported as stored are there."""
    code = WRITER.format(root=str(ROOT)) + "    print(number, flush=True)\n"
    chance = random.Random(5)
    for attempt in range(20 if os.environ.get("CI") else 4):
        names = [f"left-{attempt}", f"right-{attempt}"]
        writers = [
            subprocess.Popen([sys.executable, "-c", code, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
            for name in names
        ]
        for writer in writers:
            writer.stdout.readline()
        time.sleep(0.05 * chance.random())
        for writer in writers:
            writer.kill()
        journal = open_journal(tmp_path)
        for writer, name in zip(writers, names, strict=True):
            said = [int(line) for line in writer.communicate()[0].splitlines() if line]
            for number in range(1 + max(said, default=0)):
                found = journal.get(configuration(writer=name).key(messages(number)))
                assert found is not None
                assert found.completion.text == name
        assert journal.corrupt == 0
