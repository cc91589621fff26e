"""How requests end: cancelled, by a fault of their own, or with the engine. Others go on, and nothing stays open."""

from __future__ import annotations

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import RequestCancelledError, UserError
from ianvs_specdec.engine import Drafter, TokenTree, decode
from ianvs_specdec.targets.registry import create_target
from tests.support.requests import GREEDY, KINDS, PROMPTS, alone, engine_of, request_of, run, target_of_kind
from tests.support.targets import RecordingTarget
from tests.support.tiny import VOCABULARY, tiny_model


@pytest.fixture(scope="module")
def model():
    return tiny_model()


@pytest.fixture(params=KINDS)
def target(request, model):
    return RecordingTarget(target_of_kind(request.param, model))


def test_a_request_may_be_cancelled_at_any_moment(target):
    """While it waits, while it joins, by what it has just put out, and while it reads its prompt."""

    class Cancels(Drafter):
        def prepare(self, target):
            joining.cancel()
            return ()

    target = RecordingTarget(target, prompt_rows=8)
    waiting, joining = request_of(target, PROMPTS[0]), request_of(target, PROMPTS[0], drafter=Cancels())
    telling = request_of(target, PROMPTS[0], on_tokens=lambda _: telling.cancel())
    reading, other = request_of(target, PROMPTS[2]), request_of(target, PROMPTS[3])
    waiting.cancel()
    engine = engine_of(target)
    for request in (waiting, joining, telling, reading, other):
        engine.add(request)
    over = engine.step()
    assert waiting in over
    assert not waiting.opened
    reading.cancel()
    while engine.busy:
        over += engine.step()
    assert len(over) == len(set(over)) == 5
    for request in (waiting, joining, telling, reading):
        with pytest.raises(RequestCancelledError):
            request.result()
    assert other.result().token_ids == alone(target, PROMPTS[3])
    assert target.open_now == []


class Faulty(Drafter):
    """Raises in the method ``where``, or proposes what ``tree`` is."""

    def __init__(self, where="", tree=None):
        self._tree = tree
        if where:
            setattr(self, where, self._fail)

    def _fail(self, *_):
        raise ZeroDivisionError("its own fault")

    def propose(self, context, budget):
        return self._tree or TokenTree.chain(context.tokens[-1], [3])


class Untold(Faulty):
    """Raises when it is asked how much it has yet to read."""

    @property
    def unread_tokens(self):
        self._fail()


FAULTS = {
    "behind": {"drafter": Untold},
    **{name: {"drafter": lambda name=name: Faulty(name)} for name in ("prepare", "begin", "propose", "observe", "end")},
    "a stop function": {"stop": lambda ids: 1 // 0 if len(ids) > 2 else None},
    "who is asked whether somebody waits": {"cancelled": lambda: 1 // 0},
    "on_tokens": {"on_tokens": lambda ids: 1 // 0},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_raises_ends_its_own_request_only_and_with_that_error(target, fault):
    expected = [alone(target, prompt) for prompt in PROMPTS[:2]]
    settings = {key: value() if key == "drafter" else value for key, value in FAULTS[fault].items()}
    faulty = request_of(target, PROMPTS[2], **settings)
    others = [request_of(target, prompt) for prompt in PROMPTS[:2]]
    run(engine_of(target), others[0], faulty, others[1])
    with pytest.raises(ZeroDivisionError):
        faulty.result()
    assert [request.result().token_ids for request in others] == expected
    assert target.open_now == []


TREES = {
    "a token that the model does not have": TokenTree([0, VOCABULARY], [-1, 0]),
    "another root": TokenTree([VOCABULARY - 1, 4], [-1, 0]),
    "no parents": TokenTree([0, 4], [-1]),
    "a node before its parent": TokenTree([0, 4, 5], [-1, 2, 0]),
    "no tree": [3, 4],
}


@pytest.mark.parametrize("what", TREES)
def test_what_is_no_tree_of_the_targets_tokens_does_not_reach_the_step_of_all(model, what):
    target = RecordingTarget(create_target(model))
    expected = alone(target, PROMPTS[0])

    class Proposes(Drafter):
        def propose(self, context, budget):
            tree = TREES[what]
            if isinstance(tree, TokenTree) and tree.tokens and what != "another root":
                tree.tokens[0] = context.tokens[-1]
            return tree

    faulty, other = request_of(target, PROMPTS[2], drafter=Proposes()), request_of(target, PROMPTS[0])
    run(engine_of(target), faulty, other)
    with pytest.raises(UserError, match="Proposes"):
        faulty.result()
    assert other.result().token_ids == expected


@pytest.mark.parametrize("prompt", [[3, VOCABULARY], [-1, 3], []])
def test_a_prompt_that_cannot_be_computed_is_refused_before_it_joins(model, prompt):
    with pytest.raises(ValueError, match="the prompt"):
        request_of(create_target(model), prompt)


def test_a_step_that_fails_ends_who_took_part_and_the_next_ones_are_served(target):
    expected = alone(target, PROMPTS[0])
    requests = [request_of(target, PROMPTS[0]) for _ in range(3)]
    failing = [MemoryError("no memory left")]
    compute = target.step
    target.step = lambda parts: compute(parts) if not failing else (_ for _ in ()).throw(failing.pop())
    run(engine_of(target, max_batch_size=2), *requests)
    errors = [request for request in requests if isinstance(request.error, MemoryError)]
    assert 0 < len(errors) < 3
    assert all(request.result().token_ids == expected for request in requests if request not in errors)
    assert target.open_now == []


def test_nothing_stays_open_after_close(target):
    engine, requests = engine_of(target, max_batch_size=3), [request_of(target, prompt) for prompt in PROMPTS]
    for request in requests:
        engine.add(request)
    engine.step()
    assert len(target.open_now) == 3
    engine.close()
    assert (target.open_now, engine.busy) == ([], False)


def test_nothing_stays_open_where_decoding_is_interrupted(target):
    def interrupted(_):
        raise KeyboardInterrupt

    settings = {"eos_ids": [], "on_tokens": interrupted}
    with pytest.raises(KeyboardInterrupt):
        decode(target, drafters.create("prompt_lookup"), lengths.create("fixed:3"), PROMPTS[0], GREEDY, **settings)
    assert target.open_now == []


class Elsewhere(Drafter):
    """Has a draft when it is told that there is one."""

    remote = True

    def __init__(self):
        self.ready = False

    def propose(self, context, budget):
        self.ready = False
        return TokenTree.chain(context.tokens[-1], [5])


@pytest.fixture(scope="module")
def far_target():
    return create_target(tiny_model())


def test_a_request_without_a_draft_waits_and_others_do_not(far_target):
    engine, far = engine_of(far_target), request_of(far_target, PROMPTS[0], drafter=Elsewhere())
    near = request_of(far_target, PROMPTS[2])
    engine.add(far)
    engine.add(near)
    while not near.ended:
        assert not engine.idle
        engine.step()
    assert near.result().token_ids == alone(far_target, PROMPTS[2])
    assert (engine.idle, engine.busy) == (True, True)
    before = engine.occupancy.counters.steps
    assert engine.step() == []
    assert engine.occupancy.counters.steps == before
    while not far.ended:
        far.drafter.ready = True
        assert not engine.idle
        engine.step()
    assert far.result().token_ids == alone(far_target, PROMPTS[0])
    assert (far.result().trace.drafting, near.result().trace.drafting is None) == (None, False)
    engine.step()
    assert (engine.idle, engine.busy) == (True, False)


def test_a_waiting_request_that_is_cancelled_is_something_to_do(far_target):
    engine, far = engine_of(far_target), request_of(far_target, PROMPTS[0], drafter=Elsewhere())
    engine.add(far)
    while not engine.idle:
        engine.step()
    far.cancel()
    assert not engine.idle
    assert engine.step() == [far]


def test_who_waits_for_room_is_something_to_do_once_there_is_some(far_target):
    engine = engine_of(far_target, max_batch_size=1)
    first, second = (request_of(far_target, prompt, drafter=Elsewhere()) for prompt in PROMPTS[:2])
    engine.add(first)
    engine.add(second)
    while not engine.idle:
        engine.step()
    assert not second.opened
    while not first.ended:
        first.drafter.ready = True
        engine.step()
    assert not second.opened
    assert not engine.idle
    engine.step()
    assert second.opened
