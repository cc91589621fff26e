"""Drafters of several requests at once: each as alone, and a model that drafts computes for all of them together."""

from __future__ import annotations

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.engine import Drafter
from ianvs_specdec.targets.registry import create_target
from tests.support.drafters import Workshop, noisy
from tests.support.requests import PROMPTS, RNG, alone, engine_of, request_of, run
from tests.support.targets import RecordingTarget
from tests.support.tiny import tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    model = tiny_model(vocab_size=16, num_hidden_layers=7)
    texts = [[RNG.randrange(16) for _ in range(60)] for _ in range(4)]
    return Workshop(model, tmp_path_factory.mktemp("workshop"), texts)


@pytest.mark.parametrize("branches", [1, 3])
def test_a_draft_model_drafts_for_all_in_one_step(model, tmp_path, branches):
    target = RecordingTarget(create_target(model))
    noisy(model, 0.1).save_pretrained(tmp_path)
    first = drafters.create("draft_model", {"draft": tmp_path, "branches": branches})
    first.prepare(target)
    draft = first._model = RecordingTarget(first._model)
    one_by_one = [request_of(target, prompt, drafter=first) for prompt in PROMPTS]
    for request in one_by_one:
        run(engine_of(target), request)
    forwards = len(draft.steps)
    draft.steps.clear()
    at_once = [request_of(target, prompt, drafter=first.fork()) for prompt in PROMPTS]
    run(engine_of(target), *at_once)
    assert [request.result().token_ids for request in at_once] == [alone(target, prompt) for prompt in PROMPTS]
    steps = [[request.result().trace.steps for request in requests] for requests in (one_by_one, at_once)]
    assert steps[0] == steps[1]
    assert len(draft.steps) < forwards / 2
    assert max(len(step) for step in draft.steps) == len(PROMPTS)
    assert draft.open_now == target.open_now == []


@pytest.mark.parametrize("returned", ["an error", "too few"])
def test_a_joint_draft_that_fails_ends_all_that_share_it_and_no_other(model, returned):
    target = create_target(model)

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
    target = create_target(workshop.model)
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
