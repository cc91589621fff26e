"""Drafters of several requests at once: each as alone, and a model that drafts computes for all of them together."""

from __future__ import annotations

import itertools

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.draft_model.drafter import DraftModel
from ianvs_specdec.engine import Drafter
from ianvs_specdec.engine.request import Request
from ianvs_specdec.targets.registry import target_of
from tests.support.drafters import CASES, Workshop, noisy
from tests.support.requests import COUPLED, GREEDY, PROMPTS, RNG, alone, engine_of, request_of, run
from tests.support.tiny import tiny_model
from tests.support.watched import Watched


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    model = tiny_model(vocab_size=16, num_hidden_layers=7)
    texts = [[RNG.randrange(16) for _ in range(60)] for _ in range(4)]
    return Workshop(model, tmp_path_factory.mktemp("workshop"), texts)


SOME = ("autoregressive", "lookahead-official", "recycling", "suffix-head", "draft_model-tree", "medusa", "eagle-chain")


@pytest.mark.parametrize(("sampling", "labels"), [(GREEDY, SOME), pytest.param(COUPLED, CASES, marks=pytest.mark.slow)])
def test_methods_at_once_each_for_two_requests(workshop, sampling, labels):
    target = Watched(target_of(workshop.model))
    prompts = [[RNG.randrange(16) for _ in range(tokens)] for tokens in (9, 17)]
    expected = [alone(target, prompt, sampling) for prompt in prompts]
    requests = []
    for label in labels:
        drafter, _ = workshop.create(label)
        drafter.prepare(target)
        for prompt, one, ids in zip(prompts, (drafter, drafter.fork()), expected, strict=True):
            rule = "rejection" if sampling.greedy else "coupled"
            request = Request(target, one, prompt, sampling, eos_ids=[], rule=rule, prediction=ids)
            requests.append((label, request, ids))
    run(engine_of(target, "full"), *(request for _, request, _ in requests))
    wrong = [label for label, request, ids in requests if request.result().token_ids != ids]
    assert wrong == []
    assert target.open_now == []
    drafted = {label for label, request, _ in requests if any(step.accepted for step in request.result().trace.steps)}
    assert len(drafted) > len(labels) / 2


@pytest.fixture(scope="module")
def drafts(model, tmp_path_factory):
    """Two draft models that are right now and then."""
    folders = []
    for number, amount in enumerate((0.1, 0.3)):
        folders.append(str(tmp_path_factory.mktemp(f"draft{number}")))
        noisy(model, amount).save_pretrained(folders[-1])
    return folders


def watched_draft(drafter, target):
    drafter.prepare(target)
    drafter._model = Watched(drafter._model)
    return drafter._model


@pytest.mark.parametrize("branches", [1, 3])
def test_a_draft_model_drafts_for_all_in_one_step(model, drafts, branches):
    target = Watched(target_of(model))
    expected = [alone(target, prompt) for prompt in PROMPTS]
    first = drafters.create("draft_model", {"draft": drafts[0], "branches": branches})
    draft = watched_draft(first, target)
    steps, forwards = [], []
    for prompt in PROMPTS:
        request, engine = request_of(target, prompt, drafter=first), engine_of(target)
        engine.add(request)
        forwards.append([])
        while engine.busy:
            draft.steps.clear()
            engine.step()
            forwards[-1].append(len(draft.steps))
        steps.append(request.result().trace.steps)
    draft.steps.clear()
    requests = [request_of(target, prompt, drafter=first.fork()) for prompt in PROMPTS]
    run(engine_of(target), *requests)
    assert [request.result().token_ids for request in requests] == expected
    assert [request.result().trace.steps for request in requests] == steps
    # All prompts are read in the first step; from then on the deepest draft says how many steps there are.
    assert len(draft.steps) == sum(map(max, itertools.zip_longest(*forwards, fillvalue=0)))
    assert len(draft.steps) < sum(map(sum, forwards)) / 2
    assert max(len(step) for step in draft.steps) == len(PROMPTS)
    assert draft.open_now == target.open_now == []


@pytest.mark.parametrize("returned", ["an error", "too few"])
def test_a_joint_draft_that_fails_ends_all_that_share_it_and_no_other(model, returned):
    target = target_of(model)

    class Together(Drafter):
        batch_key = True

        @classmethod
        def propose_all(cls, drafts):
            if returned == "an error":
                raise ZeroDivisionError
            return []

    sharing = [request_of(target, prompt, drafter=Together()) for prompt in PROMPTS[:2]]
    other = request_of(target, PROMPTS[2])
    run(engine_of(target), *sharing, other)
    for request in sharing:
        with pytest.raises((ZeroDivisionError, UserError)):
            request.result()
    assert other.result().token_ids == alone(target, PROMPTS[2])


@pytest.mark.parametrize("label", ["medusa", "draft_model-tree"])
def test_of_joint_drafts_one_that_fails_ends_alone(workshop, label):
    target = target_of(workshop.model)
    first, _ = workshop.create(label)
    first.prepare(target)
    prompts = [[3, 4, 5], [6, 7], [8, 9]]
    requests = [request_of(target, prompt, drafter=first.fork()) for prompt in prompts]
    engine = engine_of(target)
    for request in requests:
        engine.add(request)
    engine.step()
    requests[1].context.sampling = None
    while engine.busy:
        engine.step()
    with pytest.raises(AttributeError):
        requests[1].result()
    for number in (0, 2):
        assert requests[number].result().token_ids == alone(target, prompts[number])


def test_a_class_that_changes_what_one_request_is_proposed_is_asked_for_each(model, drafts):
    class Cut(DraftModel):
        def propose(self, context, budget):
            return super().propose(context, budget).truncated(1)

    target = target_of(model)
    first = Cut(drafts[0])
    requests = [
        request_of(target, prompt, drafter=drafter)
        for prompt, drafter in zip(PROMPTS, (first, first.fork()), strict=False)
    ]
    run(engine_of(target), *requests)
    assert {step.drafted for request in requests for step in request.result().trace.steps[:-1]} == {1}
