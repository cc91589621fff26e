"""``bench.split``: drafts with a set quality, a link that is told what to do, and what is made of what was measured."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from bench.split import __main__ as split
from bench.split.ahead import crossing
from bench.split.grid import AUTO, STREAMED, Point
from bench.split.grid import table as grid_table
from bench.split.paced import Paced
from ianvs_specdec.decoding import Context
from ianvs_specdec.types import Sampling

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


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
def test_so_many_drafted_tokens_are_right(truth, acceptance):
    drafter = Paced(truth, acceptance)
    drafted = [token for token, _ in drafter.line(begun(drafter, []))]
    right = sum(token == known for token, known in zip(drafted, ANSWER, strict=True))
    assert right / len(ANSWER) == pytest.approx(acceptance, abs=0.04)


def test_all_who_are_compared_have_the_same_luck(truth):
    better, worse = (Paced(truth, acceptance).fork() for acceptance in (0.8, 0.5))
    tokens = [[token for token, _ in drafter.line(begun(drafter, []))] for drafter in (better, worse)]
    again = [token for token, _ in better.line(begun(better, ANSWER[:7]))]
    assert again == tokens[0][7:]
    assert all(good == known or bad != known for good, bad, known in zip(*tokens, ANSWER, strict=True))


def test_drafts_are_no_longer_than_they_may_be(truth):
    drafter = Paced(truth, 1.0, most=3)
    context = begun(drafter, ANSWER[:4])
    assert drafter.propose(context, 8).tokens == ANSWER[3:7]
    assert drafter.propose(context, 2).tokens == ANSWER[3:6]


def test_the_break_even_lies_between_the_round_trips_around_it():
    assert crossing([0.01, 0.02], [50.0, 25.0], 1 / 0.03) == pytest.approx(0.015)
    assert crossing([0.01, 0.02], [50.0, 25.0], 20.0) is None


def test_the_controller_is_compared_with_the_best_and_with_streaming():
    point = Point(0.01, 1e6, 0.8, {AUTO: [(95, 1.0)], STREAMED: [(90, 1.0)], "split 4": [(100, 1.0)]})
    told = grid_table({"points": [{**vars(point), "rates": point.rates()}]})
    assert "least 0.950" in told
    assert told.endswith("to streamed: least 1.056")


def test_each_part_says_what_it_does(capsys):
    for part in split.PARTS:
        with pytest.raises(SystemExit) as ended:
            split.main([part, "--help"])
        assert ended.value.code == 0
        assert "--out" in capsys.readouterr().out
