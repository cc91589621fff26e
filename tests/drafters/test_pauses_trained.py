"""A trained head that pauses: as many of its drafts are accepted as of a head that never does."""

from __future__ import annotations

import json

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from tests.support.pauses import BUDGET, EveryPosition, Switched, by_position, right
from tests.support.requests import decoded, target_of_kind

LEAST = 0.98
"""Of what is accepted without pauses, at the same places of the same text."""
EACH = 20
"""Switches of one request."""


def test_as_much_is_accepted_after_a_pause_as_without_pauses(shared, reference_model):
    target, sampling = target_of_kind("native", reference_model), Sampling(max_tokens=90)
    drafter, never = (drafters.create("eagle", {"head": shared / "reference/eagle3"}) for _ in range(2))
    prompts = [each["prompt"] for each in json.loads((shared / "reference/traces/eagle1_strong.json").read_text())]
    accepted = expected = done = 0
    for number, prompt in enumerate(prompts[:2]):
        shadow, trees = EveryPosition(never), []
        plain = decoded(target, shadow, str(BUDGET), prompt, sampling).token_ids
        result = decoded(target, drafter, Switched(EACH), prompt, sampling, trace_trees=trees, task=str(number))
        assert result.token_ids == plain
        text = [*prompt, *plain]
        drafted = {place: tree for place, tree in by_position(trees, result, prompt).items() if len(tree) > 1}
        accepted += sum(right(tree, text, place) for place, tree in drafted.items())
        expected += sum(right(shadow.trees[place], text, place) for place in drafted)
        done += len(drafted)
    assert done > 2 * EACH / 4
    assert accepted >= LEAST * expected > 0
