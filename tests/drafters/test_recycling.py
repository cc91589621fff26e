"""Token recycling and lookahead: state and trees."""

from __future__ import annotations

import json

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.lookahead.drafter import DEFAULTS
from ianvs_specdec.engine import Context, Observation, Output, TokenTree
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.requests import decoded
from tests.support.tiny import tiny_model


def logits(*rows):
    """Logits over 20 tokens with these best tokens, in this order."""
    result = torch.zeros(len(rows), 20)
    for row, best in zip(result, rows, strict=True):
        for rank, token in enumerate(best):
            row[token] = 9.0 - rank
    return Output(result)


class Session:
    """A request without an engine, whose context is updated as in the loop."""

    def __init__(self, drafter, prompt, after_prompt, root=None, remaining=100, confidence=0.0):
        root = after_prompt[0] if root is None else root
        self.drafter = drafter
        self.context = Context(
            [*prompt, root], len(prompt), remaining, Sampling(), torch.Generator(), confidence=confidence
        )
        drafter.begin(None, self.context, logits(after_prompt))

    def propose(self, budget=100):
        return self.drafter.propose(self.context, budget)

    def observe(self, tree, rows, path, token):
        self.context.tokens += [*(tree.tokens[node] for node in path[1:]), token]
        self.drafter.observe(Observation(tree, logits(*rows), path, token))


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[i] for i in tree.path_to(node)[1:]) for node in range(1, len(tree))]


def create(**options):
    return drafters.create("recycling", options)


def test_rows_and_rates_by_hand():
    """With two successors; initially rank 0 counts 1/3 and rank 1 half of that."""
    session = Session(create(successors=2, order=1), [1], [2, 3])
    root_only = session.propose()
    session.observe(root_only, [[1, 4]], [0], 1)
    # 2 -> 1, 4; 1 -> 2, 3. From root 1: 2 (1/3), 3 (1/6), 2-1 (1/9), 2-4 (1/18), 2-1-2 (1/27)
    tree = session.propose(budget=5)
    assert paths(tree) == [(2,), (3,), (2, 1), (2, 4), (2, 1, 2)]
    assert tree.tokens[0] == 1


def test_longer_contexts_have_priority():
    prompt = [1, 2, 3, 9, 2, 4, 9, 1]
    assert paths(Session(create(order=2), prompt, [2]).propose(budget=1)) == [(3,)]
    assert paths(Session(create(order=1), prompt, [2]).propose(budget=1)) == [(4,)]
    assert paths(Session(create(order=2), [*prompt[:-1], 7], [2]).propose(budget=1)) == [(4,)]


def test_limits():
    session = Session(create(successors=2, order=1), [1, 2, 1, 2], [1, 2], root=1)
    assert len(session.propose(budget=7)) == 8
    assert len(session.propose()) == 1 + 16
    for remaining, depth in ((1, 0), (2, 1), (4, 3)):
        session.context.remaining = remaining
        assert max(session.propose().depths) == depth
    for confidence in (0.3, 1 / 3):  # a third is what the first guess counts before anything is known
        session.context.remaining, session.context.confidence = 100, confidence
        assert paths(session.propose()) == [(2,)]


@pytest.fixture(scope="module")
def target():
    return HuggingFaceTarget(tiny_model())


def test_tau_on_the_reference_target(shared, reference_model):
    """Rows of two tokens guess better than the published method's of one."""
    traces = json.loads((shared / "reference" / "traces" / "eagle1_strong.json").read_text())
    target = HuggingFaceTarget(reference_model)
    tau = {}
    for order in (1, 2):
        drafter, steps = create(order=order), []
        for trace in traces[1:3]:
            result = decoded(target, drafter, "full", trace["prompt"], Sampling(max_tokens=64), eos_ids=[2])
            assert [*trace["prompt"], *result.token_ids] == trace["output"][: len(trace["prompt"]) + 64]
            steps += result.trace.steps
        tau[order] = sum(step.emitted for step in steps) / len(steps)
    assert tau[2] > tau[1] > 1.5


BEST = 9.0


def logits_of(said):
    """Logits over 40 tokens, one row per entry of ``said``, which is the best of its row."""
    rows = torch.zeros(len(said), 40)
    rows[torch.arange(len(said)), torch.tensor(said)] = BEST
    return Output(rows)


class Lookahead:
    """A request driven by hand, with the context kept as the loop keeps it."""

    def __init__(self, tokens, prompt_tokens=None, remaining=100, confidence=0.0, drafter=None, **settings):
        self.drafter = drafter or drafters.create("lookahead", settings)
        prompt_tokens = len(tokens) if prompt_tokens is None else prompt_tokens
        self.context = Context(
            list(tokens), prompt_tokens, remaining, Sampling(), torch.Generator(), confidence=confidence
        )
        self.drafter.begin(None, self.context, Output(torch.zeros(1, 40)))

    def propose(self, budget=100):
        return self.drafter.propose(self.context, budget)

    def observe(self, tree, said, path=(0,)):
        """The step: what the target says after every node, and what was accepted."""
        self.context.tokens += [*(tree.tokens[node] for node in path[1:]), said[path[-1]]]
        self.drafter.observe(Observation(tree, logits_of(said), list(path), said[path[-1]]))


@pytest.mark.parametrize("start", ["official", "prompt"])
def test_incomplete_trees_do_not_advance_the_window(start):
    session = Lookahead([3, 1, 4, 1, 5], start=start)
    tree = session.propose()
    session.observe(TokenTree.chain(5), [6])
    session.observe(tree.truncated(1), [7, 8])
    assert session.propose().tokens[1:] == tree.tokens[1:]


def test_drafts_end_at_the_remaining_tokens():
    text = [1, 2, 3, 4, 1]
    assert len(Lookahead(text, remaining=1).propose()) == 1
    tree = Lookahead(text, remaining=3, window=1).propose()
    assert paths(tree)[:2] == [(2,), (2, 3)]
    assert (2, 3, 4) not in paths(tree)


def test_requests_do_not_affect_later_ones():
    drafter = drafters.create("lookahead")
    session = Lookahead([1, 2, 3, 4, 1], drafter=drafter)
    session.observe(tree := session.propose(), [20] * len(tree))
    again = Lookahead([1, 2, 3, 4, 1], drafter=drafter).propose()
    assert again.tokens == tree.tokens
    assert Lookahead([20, 3], drafter=drafter).propose(100).parents == list(range(-1, 4))


@pytest.mark.parametrize("start", DEFAULTS)
def test_level_must_leave_room_for_a_guess(start):
    with pytest.raises(UserError, match="level must be a whole number from 2, not 1") as caught:
        drafters.create("lookahead", {"level": 1, "start": start})
    assert caught.value.key == "level"
