from __future__ import annotations

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Load, Stats, decode
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.budgets import Budgets
from tests.support.tiny import tiny_model

PROMPT = [5, 6, 7, 5, 6]


@pytest.mark.parametrize(("spec", "tokens"), [("fixed:10", 10), ("fixed:0", 0), ("7", 7)])
def test_fixed(spec, tokens):
    assert lengths.create(spec).budgets(Load([Stats(5)])) == [tokens]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fixd:3", "Did you mean 'fixed'"),
        ("fixed", "for example fixed:10"),
        ("fixed:-1", "for example fixed:10"),
        ("fixed:many", "for example fixed:10"),
        ("", "Known: bandit, confidence, ema, fixed"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_key(spec, message):
    with pytest.raises(UserError, match=message) as caught:
        lengths.create(spec)
    assert caught.value.key == "length"


def test_a_length_is_told_what_it_asked_for_and_what_came_of_it():
    target = HuggingFaceTarget(tiny_model())
    drafter = drafters.create("prompt_lookup")
    told = []

    def choose(stats, step):
        told.append((stats, stats.remaining, stats.context_tokens))
        return (0, 4, 2)[step % 3]

    length = Budgets(choose)
    result = decode(target, drafter, length, PROMPT, Sampling(max_tokens=12), eos_ids=[], task="copying")
    (stats,) = {stats for stats, _, _ in told}
    emitted = [step.emitted for step in result.trace.steps]
    assert stats.task == "copying"
    assert [remaining for _, remaining, _ in told] == [11 - sum(emitted[:i]) for i in range(len(emitted))]
    assert [tokens for _, _, tokens in told] == [len(PROMPT) + 1 + sum(emitted[:i]) for i in range(len(emitted))]
    prompt, *steps = length.finished
    assert (prompt.shares, prompt.prompt_rows) == ([], len(PROMPT))
    shares = [share for step in steps for share in step.shares]
    assert [share.step for share in shares] == result.trace.steps
    assert [share.budget for share in shares] == [(0, 4, 2)[i % 3] for i in range(len(steps))]
    assert [share.depth for share in shares] == [share.step.drafted for share in shares]
    assert [share.over for share in shares] == [False] * (len(steps) - 1) + [True]
    assert all(step.verify_seconds > 0 and step.prompt_rows == 0 for step in steps)
