"""Trained heads that pause: as many of their drafts are accepted as of heads that never do."""

from __future__ import annotations

import copy
import functools
import itertools
import json

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import decode
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.registry import target_of
from tests.support.few import few
from tests.support.pauses import BUDGET, EveryPosition, Switched, by_position, right

TRAINED = {
    "eagle1": ("eagle", {"head": "eagle1"}),
    "eagle1-static": ("eagle", {"head": "eagle1", "tree": "static"}),
    "eagle3": ("eagle", {"head": "eagle3"}),
    "medusa": ("medusa", {"head": "medusa"}),
    "suffix": ("suffix", {"head": "eagle1"}),
}
LEAST = 0.98
"""Of what is accepted without pauses, at the same places of the same text."""

EACH = 20
"""Switches of one request."""

FAST = ("native", "eagle3", 40)
CASES = [FAST, *itertools.product(("native", "torch"), TRAINED, [1000])]


@pytest.fixture(scope="module")
def targets(reference_model):
    made = {"torch": target_of(copy.deepcopy(reference_model).double(), engine="torch")}
    if library.why_not() is None:
        made["native"] = target_of(reference_model, engine="native")
    return made


@pytest.mark.parametrize(("engine", "label", "switches"), few(CASES, lambda case: case == FAST))
def test_as_much_is_accepted_after_a_pause_as_without_pauses(shared, targets, engine, label, switches):
    if engine not in targets:
        pytest.skip(library.why_not())
    target, (method, options) = targets[engine], TRAINED[label]
    head = {key: shared / "reference" / value if key == "head" else value for key, value in options.items()}
    drafter, never = (drafters.create(method, head) for _ in range(2))
    prompts = [each["prompt"] for each in json.loads((shared / "reference/traces/eagle1_strong.json").read_text())]
    sampling = Sampling(max_tokens=90)

    @functools.cache
    def unpaused(number):
        shadow = EveryPosition(never)
        plain = decode(target, shadow, lengths.create(str(BUDGET)), prompts[number], sampling, eos_ids=[])
        return plain.token_ids, shadow.trees

    accepted = expected = done = 0
    for number in range(switches // EACH):
        prompt, trees = prompts[number % len(prompts)], []
        result = decode(
            target, drafter, Switched(EACH), prompt, sampling, eos_ids=[], trace_trees=trees, task=str(number)
        )
        plain, expected_trees = unpaused(number % len(prompts))
        assert result.token_ids == plain
        text = [*prompt, *plain]
        drafted = {place: tree for place, tree in by_position(trees, result, prompt).items() if len(tree) > 1}
        accepted += sum(right(tree, text, place) for place, tree in drafted.items())
        expected += sum(right(expected_trees[place], text, place) for place in drafted)
        done += len(drafted)
    assert done > switches / 4
    assert accepted >= LEAST * expected > 0
