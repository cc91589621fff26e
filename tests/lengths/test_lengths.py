"""Speculation lengths: what each chooses, what it is told of a step, and what cannot be read."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Load, Stats, decode
from ianvs_specdec.engine.costs import Grid
from ianvs_specdec.lengths.ema import INTERVAL, WARM_UP
from ianvs_specdec.lengths.oracle import Oracle, Replayed
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.cost_tables import simple
from tests.support.lengths import ScriptedLength, running, stepped
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
        *((wrong, "for example queue:8:all:5") for wrong in ("queue:", "queue:-1", "queue:3:some", "queue:3:all:0")),
        *((wrong, "for example ema:1,3,7") for wrong in ("ema:x", "ema:1,,2")),
        *((wrong, "for example bandit:5") for wrong in ("bandit:0", "bandit:5:x")),
        ("goodput:3", "goodput takes no argument"),
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

    length = ScriptedLength(choose)
    result = decode(target, drafter, length, PROMPT, Sampling(max_tokens=12), eos_ids=[], task="copying")
    (stats,) = {stats for stats, _, _ in told}
    emitted = [step.emitted for step in result.trace.steps]
    assert stats.task == "copying"
    assert [remaining for _, remaining, _ in told] == [11 - sum(emitted[:i]) for i in range(len(emitted))]
    assert [tokens for _, _, tokens in told] == [len(PROMPT) + 1 + sum(emitted[:i]) for i in range(len(emitted))]
    prompt, *steps = length.finished
    assert (prompt.requests, prompt.prompt_rows) == ([], len(PROMPT))
    requests = [request for step in steps for request in step.requests]
    assert [request.step for request in requests] == result.trace.steps
    assert [request.budget for request in requests] == [(0, 4, 2)[i % 3] for i in range(len(steps))]
    assert [request.depth for request in requests] == [request.step.drafted for request in requests]
    assert [request.over for request in requests] == [False] * (len(steps) - 1) + [True]
    assert all(step.verify_seconds > 0 and step.prompt_rows == 0 for step in steps)


@pytest.mark.parametrize(
    ("spec", "tokens"), [("queue:3", 5), ("queue:3:all", 5), ("queue:3:all:7", 7), ("queue:3:new:2", 2)]
)
def test_on_up_to_so_many_and_off_above(spec, tokens):
    length = lengths.create(spec)
    assert [length.budgets(running(count)) for count in (1, 3)] == [[tokens], [tokens] * 3]
    assert length.budgets(running(4)) == [0] * 4


def test_for_new_requests_what_was_decided_at_their_first_step_holds():
    length, old, new = lengths.create("queue:2:new:4"), [Stats(5), Stats(5)], Stats(5)
    assert length.budgets(Load(old)) == [4, 4]
    assert length.budgets(Load([*old, new])) == [4, 4, 0]
    assert length.budgets(Load([new])) == [0]
    assert length.budgets(Load([new, Stats(5)])) == [0, 4]


def adapted(length, steps, accepted, count=1):
    return [stepped(length, running(count), accepted)[0] for _ in range(steps)]


def test_it_begins_in_the_middle_and_waits_before_it_changes():
    length = lengths.create("ema:1,3,7")
    assert adapted(length, WARM_UP + INTERVAL, 99) == [3] * (WARM_UP + INTERVAL)
    assert adapted(length, INTERVAL, 99) == [7] * INTERVAL


def test_it_goes_down_where_little_is_accepted_and_up_again_where_much_is():
    length = lengths.create("ema:7,1,3")
    assert adapted(length, 60, 0)[-1] == 1
    assert adapted(length, 60, 99)[-1] == 7


def test_each_range_of_batch_sizes_has_a_state_of_its_own():
    length = lengths.create("ema")
    assert adapted(length, 60, 99)[-1] == 7
    assert adapted(length, 60, 0, count=20)[-1] in (0, 1)
    assert adapted(length, 1, 99) == [7]
    assert adapted(length, 40, 99, count=64) == [0] * 40


def test_after_a_time_without_drafts_it_tries_again():
    length = lengths.create("ema:0,2")
    low = adapted(length, 100, 0)
    assert {0, 2} <= set(low[20:])
    assert adapted(length, 60, 99)[-1] == 2


def chosen(length, steps, count, accepted, seconds):
    return [stepped(length, running(count), accepted, seconds)[0] for _ in range(steps)]


def share(budgets, budget):
    return budgets.count(budget) / len(budgets)


def test_it_finds_the_best_length_of_each_batch_size():
    """One request alone: three tokens are accepted, and drafts are cheap. Many: a drafted token costs a whole step."""
    length = lengths.create("bandit:5")
    chosen(length, 3000, 1, 3, lambda budget: 1 + 0.05 * budget)
    chosen(length, 3000, 16, 3, lambda budget: 1.0 + 2 * budget)
    assert share(chosen(length, 500, 1, 3, lambda budget: 1 + 0.05 * budget), 3) > 0.7
    assert share(chosen(length, 500, 16, 3, lambda budget: 1.0 + 2 * budget), 0) > 0.7


def test_it_follows_what_changes():
    length = lengths.create("bandit:4")
    chosen(length, 2000, 1, 4, 1.0)
    chosen(length, 4000, 1, 0, lambda budget: 1 + budget)
    assert share(chosen(length, 500, 1, 0, lambda budget: 1 + budget), 0) > 0.7


def test_the_same_seed_makes_the_same_choices():
    runs = [chosen(lengths.create(spec), 2000, 1, 2, 1.0) for spec in ("bandit:5:1", "bandit:5:1", "bandit:5:2")]
    assert runs[0] == runs[1] != runs[2]


VLLM = "[[1,64,3],[65,128,1],[129,512,0]]"
TENSORRT = "{4: 4, 8: 2, 32: 1}"


def tokens(spec, *counts):
    length = lengths.create(spec)
    return [length.budgets(running(count)) == [budget] * count and budget for count, budget in counts]


@pytest.mark.parametrize("spec", [f"table:{VLLM}", VLLM, yaml.safe_load(VLLM), f"table: {VLLM.replace(',', ', ')}"])
def test_a_table_of_vllm(spec):
    expected = [(1, 3), (64, 3), (65, 1), (128, 1), (129, 0), (600, 0)]
    assert tokens(spec, *expected) == [3, 3, 1, 1, 0, 0]


@pytest.mark.parametrize(
    "spec", [f"table:{TENSORRT}", TENSORRT, "{4:4,8:2,32:1}", yaml.safe_load(TENSORRT), '{"4": 4, "8": 2, "32": 1}']
)
def test_a_schedule_of_tensorrt_llm_ends_in_nothing(spec):
    expected = [(1, 4), (4, 4), (5, 2), (8, 2), (9, 1), (32, 1), (33, 0)]
    assert tokens(spec, *expected) == [4, 4, 2, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("[[1,4,3],[6,8,2]]", "[6, 8, 2] leaves a gap behind 4"),
        ("[[2,4,3]]", "[2, 4, 3] leaves a gap behind 0"),
        ("[[1,4,3],[4,8,2]]", "[4, 8, 2] overlaps"),
        ("[[1,4,-1]]", "-1 is not a whole number of at least 0"),
        ("[[0,4,1]]", "0 is not a whole number of at least 1"),
        ("[[1,4,2.5]]", "2.5 is not"),
        ("[1,4,2]", "1 is not [first, last, tokens]"),
        ("[]", "the table is empty"),
        ("{}", "the table is empty"),
        ("{4: 4, '4': 2}", "twice"),
        ("[[1,4,3]", "neither a list nor a mapping"),
        ("[" * 9999, "neither a list nor a mapping"),
        ("__import__('os')", "neither a list nor a mapping"),
    ],
)
def test_what_is_no_table_is_told_with_what_to_write(wrong, told):
    with pytest.raises(UserError) as caught:
        lengths.create(f"table:{wrong}")
    assert told in str(caught.value)
    assert "write vLLM's table:[[1,16,5],[17,64,2]]" in str(caught.value)
    assert caught.value.key == "length"


@pytest.mark.parametrize("table", [VLLM, TENSORRT])
@pytest.mark.parametrize(
    "written", ["length: {}", "length: '{}'", "length: 'table:{}'", "length: {{PromptLookup: {}}}"]
)
def test_in_yaml_a_table_is_a_list_a_mapping_or_a_text(tiny_model: Path, table, written):
    given = yaml.safe_load(written.format(table))
    settings = ModelSettings.parse({"model": str(tiny_model), "backend": "PromptLookup", **given})
    length = settings.llm("PromptLookup")._length
    assert length.budgets(running(3)) == [4 if table == TENSORRT else 3] * 3
    assert length.budgets(running(200)) == [0] * 200


def known(tokens):
    """A request of whose draft so many tokens would be accepted."""
    return Replayed(20, coming=lambda most: min(most, tokens))


def rate(costs, load, budgets):
    running = len(load.running)
    right = sum(stats.coming(budget) for budget, stats in zip(budgets, load.running, strict=True))
    rows = running + sum(budgets)
    context = sum(stats.context_tokens for stats in load.running)
    drafts = [budget for budget in budgets if budget]
    reading = load.prompt_rows, load.prompt_rows
    seconds = costs.step_seconds(rows, context, running, *reading) + costs.draft_seconds(drafts)
    return (running + right) / seconds


@pytest.mark.parametrize("seed", range(6))
def test_no_budgets_are_better_in_any_step(seed):
    chance = random.Random(seed)
    # Rows are free up to a knee; a level costs the same for any number of requests.
    step = Grid((1, 6, 12), (0, 100), ((0.01, 0.011), (0.0102, 0.0112), (0.02, 0.021)))
    costs = replace(simple(), step=step, draft=Grid((1, 3), (0, 4), ((0.0, 0.004), (0.0, 0.004))))
    for _ in range(15):
        running = [known(chance.randrange(5)) for _ in range(3)]
        load = Load(running, prompt_rows=chance.choice((0, 30)))
        chosen = Oracle(costs).budgets(load)
        best = max(rate(costs, load, budgets) for budgets in itertools.product(range(5), repeat=3))
        assert rate(costs, load, chosen) == pytest.approx(best)


def test_it_is_refused_wherever_the_future_is_not_known():
    with pytest.raises(UserError, match="only `specdec simulate` can tell it") as told:
        lengths.create("oracle")
    assert told.value.key == "length"
    with pytest.raises(UserError, match="only `specdec simulate` can tell it"):
        Oracle(simple()).budgets(Load([Stats(20)]))
