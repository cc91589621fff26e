"""Requests drawn from recorded answers: lengths, tasks, acceptance; invalid recordings."""

from __future__ import annotations

import json
from random import Random

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Step, Trace
from ianvs_specdec.load.simulation.workload import Workload, read
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.database import FILE_NAME
from ianvs_specdec.records.journal import Journal


def steps_of(chance, rate, drafted, output):
    """A recorded answer whose drafted tokens are right with that probability."""
    steps, done = [], 1
    while done < output:
        right = next((level for level in range(drafted) if chance.random() >= rate), drafted)
        emitted = min(right + 1, output - done)
        accepted = min(right, emitted)
        steps.append({"drafted": drafted, "accepted": accepted, "emitted": emitted, "verified": drafted + 1})
        done += emitted
    return steps


def row(chance, task, rate, prompt=7, output=60):
    told = {"prompt": [1] * prompt, "output": [1] * (prompt + output), "steps": steps_of(chance, rate, 4, output)}
    return told | ({"task": task} if task else {})


@pytest.fixture
def recorded(tmp_path):
    chance = Random(0)
    path = tmp_path / "decoded.jsonl"
    rows = [row(chance, task, rate) for task, rate in (("easy", 0.9), ("hard", 0.2)) for _ in range(30)]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_acceptance_by_task_and_depth(recorded):
    found = read(recorded)
    assert len(found) == 60
    for task, rate in (("easy", 0.9), ("hard", 0.2)):
        own = [one for one in found if one.task == task]
        assert len(own) == 30
        assert {(one.prompt, one.output, one.found) for one in own} == {(7, 60, 1.0)}
        assert sum(one.survival[0] for one in own) / 30 == pytest.approx(rate, abs=0.05)
    # No draft was deeper than four: the levels after them are as good as the fourth.
    assert found[0].survival[5] == found[0].survival[200]


def test_lengths_of_requests(recorded):
    chance = Random(2)
    found = read(recorded)
    assert {(one.prompt, one.output, one.most) for one in (Workload(found).draw(chance),)} == {(7, 60, 60)}
    own = Workload(found, prompt_tokens=100, max_tokens=20).draw(chance)
    assert (own.prompt, own.output, own.most) == (100, 20, 20)


def test_read_journal(tmp_path):
    journal = Journal(tmp_path / FILE_NAME, "run")
    for number, step in enumerate([Step(0, 0, 1, 1)] * 2 + [Step(3, 1, 2, 4)]):
        answer = Completion("x" * 9, list(range(9)), 12, 9, "stop", Trace([(0.1, 9)], [step] * (8 // step.emitted)))
        asked = [{"role": "user", "content": str(number)}]
        journal.put(Configuration("m", {}), asked, answer, side="cloud", hardware={})
    (found,) = read(tmp_path / FILE_NAME)
    assert (found.prompt, found.output) == (12, 9)
    assert found.survival[0] > found.survival[1]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "no answer has steps with drafts"),
        ("{}\n", ":1: expected a journal.sqlite, or lines"),
        ("[" * 100_000, ":1: expected a journal.sqlite, or lines"),
        ('{"prompt": [1], "output": [1, 2], "steps": [{"drafted": -1}]}', ":1: expected a journal.sqlite, or lines"),
    ],
)
def test_invalid_recordings(tmp_path, text, part):
    path = tmp_path / "traces.jsonl"
    path.write_text(text)
    with pytest.raises(UserError) as told:
        read(path)
    assert str(told.value).startswith(f"--traces {path}")
    assert part in str(told.value)


def test_recorded_drafts_are_replayed(tmp_path):
    path = tmp_path / "decoded.jsonl"
    lines = [row(Random(seed), "", 0.6, output=40) for seed in range(20)]
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    outcomes = set()
    for recorded_answer, line in zip(read(path), lines, strict=True):
        # Steps are those of drafts of four, from the second token of the output on.
        place = 1
        asked = [Workload([recorded_answer], max_tokens=60).draw(Random(luck)) for luck in range(5)]
        for step in line["steps"]:
            for one in asked:
                drawn = zip(one.draws[place : place + 4], one.survival, strict=False)
                right = [luck < rate for luck, rate in drawn]
                assert [*right, False].index(False) == step["accepted"]
            place += step["emitted"]
        outcomes |= {tuple(one.draws) for one in asked}
    assert len(outcomes) == 100
