"""``bench.split``: drafts with a set quality, a link that is told what to do, and what is made of what was measured."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from bench.split import __main__ as split
from bench.split.grid import AUTO, SHARE, STREAMED
from bench.split.grid import table as grid_table
from bench.split.paced import Paced
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Context

PROMPT, ANSWER = [5, 6], list(range(100, 2100))


@pytest.fixture
def truth(tmp_path):
    file = tmp_path / "truth.jsonl"
    file.write_text(json.dumps({"prompt": PROMPT, "output": PROMPT + ANSWER}) + "\n")
    return str(file)


def begun(drafter, output):
    context = Context(PROMPT + output, len(PROMPT), 5000, Sampling(max_tokens=5000), torch.Generator())
    drafter.begin(SimpleNamespace(vocabulary=4096), context, None)
    return context


def drafted(drafter, output):
    return drafter.propose(begun(drafter, output), 5000).tokens[1:]


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
def test_so_many_drafted_tokens_are_right(truth, acceptance):
    tokens = drafted(Paced(truth, acceptance, most=5000), [])
    right = sum(token == known for token, known in zip(tokens, ANSWER, strict=True))
    assert right / len(ANSWER) == pytest.approx(acceptance, abs=0.04)


def test_all_who_are_compared_have_the_same_luck(truth):
    better, worse = (Paced(truth, acceptance, most=5000).fork() for acceptance in (0.8, 0.5))
    tokens = [drafted(drafter, []) for drafter in (better, worse)]
    again = drafted(better, ANSWER[:7])
    assert again == tokens[0][7:]
    assert all(good == known or bad != known for good, bad, known in zip(*tokens, ANSWER, strict=True))


def test_the_next_choices_are_right_as_often_as_they_are_said_to_be(truth):
    drafter = Paced(truth, 0.5)
    begun(drafter, [])
    choices = [drafter.choices(len(PROMPT) + n) for n in range(len(ANSWER))]
    for n, (_, chance) in enumerate(choices[0]):
        right = sum(found[n][0] == known for found, known in zip(choices, ANSWER, strict=True))
        assert right / len(ANSWER) == pytest.approx(chance, abs=0.04)
    assert all(len({token for token, _ in found}) == len(found) for found in choices)


def test_lines_say_what_drafts_do_wherever_they_lead(truth):
    drafter = Paced(truth, 0.5)
    lines = drafter.lines_behind(begun(drafter, []))
    [first] = lines.grow([0])
    assert [len(found) for found in lines.grow([1, 3])] == [len(first)] * 2
    [deep] = lines.grow([len(first) + 1])
    chain = drafter.propose(begun(drafter, []), 3).tokens[1:]
    assert (first[0][0], deep[0][0]) == (chain[0], chain[2])


def test_drafts_are_no_longer_than_they_may_be(truth):
    drafter = Paced(truth, 1.0, most=3)
    context = begun(drafter, ANSWER[:4])
    assert drafter.propose(context, 8).tokens == ANSWER[3:7]
    assert drafter.propose(context, 2).tokens == ANSWER[3:6]


def test_the_controller_is_compared_with_the_best_and_with_streaming():
    rates = {AUTO: 95.0, STREAMED: 90.0, "split 4": 100.0, SHARE: 0.2}
    told = grid_table({"points": [{"rates": rates}]})
    assert "least 0.950" in told
    assert told.endswith("to streamed: least 1.056")


def test_each_part_says_what_it_does(capsys):
    for part in split.PARTS:
        with pytest.raises(SystemExit) as ended:
            split.main([part, "--help"])
        assert ended.value.code == 0
        assert "--out" in capsys.readouterr().out
