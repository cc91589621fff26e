from __future__ import annotations

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.decoding import HuggingFaceTarget, Stats, TokenTree, decode
from ianvs_specdec.errors import UserError
from ianvs_specdec.types import Sampling
from tests.support.tiny import tiny_model


@pytest.mark.parametrize(("spec", "tokens"), [("fixed:10", 10), ("fixed:0", 0), ("7", 7)])
def test_fixed(spec, tokens):
    assert lengths.create(spec).budget(Stats(5)) == tokens


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fixd:3", "Did you mean 'fixed'"),
        ("fixed", "for example fixed:10"),
        ("fixed:-1", "for example fixed:10"),
        ("fixed:many", "for example fixed:10"),
        ("", "Known: confidence, fixed"),
    ],
)
def test_what_cannot_be_read_is_said_with_the_key(spec, message):
    with pytest.raises(UserError, match=message) as caught:
        lengths.create(spec)
    assert caught.value.key == "length"


def test_a_length_is_told_what_it_asked_for_and_what_came_of_it():
    model = tiny_model()
    told = []

    class Watching:
        confidence = 0.0

        def budget(self, stats):
            told.append((stats, stats.remaining, len(stats.steps)))
            return (0, 4, 2)[len(stats.steps) % 3]

    target = HuggingFaceTarget(model)
    drafter = drafters.create("prompt_lookup")
    sampling = Sampling(max_tokens=12)
    result = decode(target, drafter, Watching(), [5, 6, 7, 5, 6], sampling, eos_ids=[], task="copying")
    stats, remaining, steps = told[-1]
    assert len({id(one) for one, _, _ in told}) == 1
    assert (stats.task, told[0][1], steps) == ("copying", 11, len(result.trace.steps) - 1)
    assert remaining == result.trace.steps[-1].emitted
    assert stats.steps == result.trace.steps[:-1]
    assert stats.budgets == [(0, 4, 2)[i % 3] for i in range(steps)]
    assert stats.depths == [step.drafted for step in stats.steps]
    assert len(stats.draft_seconds) == len(stats.verify_seconds) == steps


def test_scouts_do_not_make_a_tree_deeper():
    assert TokenTree([9, 1, 2, 3], [-1, 0, 1, 2]).depth == 3
    assert TokenTree([9, 1, 2, 3], [-1, 0, 1, 2], scouts=frozenset({2, 3})).depth == 1
    assert TokenTree.chain(9).depth == 0
