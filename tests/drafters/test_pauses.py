"""Speculation that pauses: what is drafted afterwards is what a drafter drafts that never paused, and nothing is read
before it is needed."""

from __future__ import annotations

import copy
import functools
import itertools
import random

import pytest

from ianvs_specdec import lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import decode
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.memory import held
from ianvs_specdec.engine.request import Request
from ianvs_specdec.targets.registry import target_of
from tests.support.drafters import CASES, Workshop
from tests.support.few import few
from tests.support.pauses import BUDGET, EveryPosition, Switched, by_position
from tests.support.requests import target_of_kind
from tests.support.tiny import tiny_model

VOCABULARY = 16  # so few that even heads of random numbers are often right
RNG = random.Random(0)
PROMPTS = [[RNG.randrange(VOCABULARY) for _ in range(length)] for length in (40, 9, 1, 23)]
LEARNS = {"lookahead", "lookahead-official", "recycling", "predicted_output"}
"""What these draft depends on what was verified before, not on the text alone."""
STATELESS = {"autoregressive", "rest", "own"}
STATEFUL = sorted(CASES.keys() - STATELESS)
EACH = 25
"""Switches of one request."""

GREEDY, *OTHERS = (
    Sampling(max_tokens=120),
    Sampling(max_tokens=120, repetition_penalty=1.2),
    Sampling(max_tokens=120, temperature=0.9, seed=3),
)
FAST = [
    *(("native", label, GREEDY, 100) for label in ("eagle", "eagle3-chain", "medusa", "suffix-head")),
    *(("native", label, GREEDY, 25) for label in ("draft_model", "dflash")),
    ("torch", "eagle3-chain", GREEDY, 25),
]
SLOW = [
    *itertools.product(("native", "torch"), STATEFUL, [GREEDY], [1000]),
    *itertools.product(["native"], STATEFUL, OTHERS, [100]),
]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    model = tiny_model(vocab_size=VOCABULARY, num_hidden_layers=7)
    texts = [[RNG.randrange(VOCABULARY) for _ in range(60)] for _ in range(4)]
    return Workshop(model, tmp_path_factory.mktemp("workshop"), texts)


@pytest.fixture(scope="module")
def targets(workshop):
    """In torch in float64, where rounding of more rows at a time decides nothing."""

    @functools.cache
    def made(engine):
        if engine == "torch":
            return target_of(copy.deepcopy(workshop.model).double(), engine="torch")
        return target_of_kind("native", workshop.model)

    return made


def switched(target, drafter, sampling, prompts, texts, switches):
    """The requests after so many switches in all, each with its prompt and its trees."""
    engine, asked = Engine(target, Switched(EACH), at_once=8), []
    for number in range(switches // EACH):
        prompt, trees = prompts[number % len(prompts)], []
        given = {"eos_ids": [], "rule": "coupled", "task": str(number), "prediction": texts[number % len(prompts)]}
        request = Request(target, drafter.fork(), prompt, sampling, trace_trees=trees, **given)
        engine.add(request)
        asked.append((prompt, request, trees))
    while engine.busy:
        engine.step()
    return asked


def unpaused(target, drafter, prompt, sampling):
    """The trees of an instance that is asked at every position, and the text, which is that of plain decoding."""
    shadow = EveryPosition(drafter)
    result = decode(target, shadow, lengths.create(str(BUDGET)), prompt, sampling, eos_ids=[], rule="coupled")
    return shadow.trees, result.token_ids


def same(tree, other):
    return (tree.tokens, tree.parents) == (other.tokens, other.parents)


@pytest.mark.parametrize(("engine", "label", "sampling", "switches"), few([*FAST, *SLOW], lambda case: case in FAST))
def test_after_a_pause_drafts_are_those_of_an_instance_that_never_paused(
    targets, workshop, engine, label, sampling, switches
):
    target = targets(engine)
    drafter, _ = workshop.create(label)
    prompts = PROMPTS[: switches // EACH]
    never = [unpaused(target, workshop.create(label)[0], prompt, sampling) for prompt in prompts]
    asked = switched(target, drafter, sampling, prompts, [text for _, text in never], switches)
    drafted = 0
    for number, (prompt, request, trees) in enumerate(asked):
        expected, text = never[number % len(prompts)]
        result = request.result()
        assert result.token_ids == text
        found = {place: tree for place, tree in by_position(trees, result, prompt).items() if len(tree) > 1}
        drafted += len(found)
        if label not in LEARNS:
            stale = [place for place, tree in found.items() if not same(tree, expected[place])]
            assert stale == []
    assert drafted > switches / 4


@pytest.mark.parametrize("engine", ["native", "torch"])
@pytest.mark.parametrize("label", ["eagle", "eagle3-chain", "draft_model", "dflash"])
def test_what_a_paused_drafter_holds_is_within_what_is_set_aside(workshop, targets, engine, label):
    target, drafter = targets(engine), workshop.create(label)[0]
    drafter.prepare(target)
    length = Switched(EACH)
    request = Request(target, drafter.fork(), PROMPTS[0] * 8, Sampling(max_tokens=60), eos_ids=[])
    aside = request.drafter.memory(request.positions)
    running, most = Engine(target, length), 0
    running.add(request)
    while running.busy:
        running.step()
        own = [vars(request.drafter).get(name) for name in ("_pending", "_sequence")]
        most = max(most, held(*own, apart=[target, *target.weights, *drafter.weights(), drafter.batch_key]))
    # A native sequence has its keys and values in the library, where nobody sees them from here.
    assert (0 if engine == "native" and label == "draft_model" else 1) <= most <= aside


def test_requests_wait_for_the_memory_of_their_drafters(workshop, targets):
    target, drafter = targets("torch"), workshop.create("eagle3-chain")[0]
    drafter.prepare(target)
    requests = [Request(target, drafter.fork(), PROMPTS[0], Sampling(max_tokens=8), eos_ids=[]) for _ in range(3)]
    of_one = requests[0].memory
    assert of_one > target.memory(requests[0].positions)
    engine = Engine(target, lengths.create("fixed:0"), memory=2 * of_one)
    for request in requests:
        engine.add(request)
    engine.step()
    assert (engine.occupancy.sequences, engine.occupancy.waiting) == (2, 1)
    assert engine.occupancy.memory == 2 * of_one
    while engine.busy:
        engine.step()
    assert [len(request.result().token_ids) for request in requests] == [8] * 3
