"""Token recycling: what is remembered, the tree it makes, and the target's own output."""

from __future__ import annotations

import json

import pytest
import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters import recycling
from ianvs_specdec.engine import Context, Observation, Output, TokenTree, decode
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.requests import decoded
from tests.support.tiny import VOCABULARY, tiny_model

NONE, FIXED_0 = drafters.create("autoregressive"), lengths.create("fixed:0")


def logits(*rows):
    """Logits over 20 tokens in which these tokens are the best, in this order."""
    result = torch.zeros(len(rows), 20)
    for row, best in zip(result, rows, strict=True):
        for rank, token in enumerate(best):
            row[token] = 9.0 - rank
    return Output(result)


class Session:
    """A request driven by hand, with the context kept as the loop keeps it."""

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


def test_by_hand():
    """Two successors each; before anything has come true rank 0 counts 1/3 and rank 1 half of that."""
    session = Session(create(successors=2, order=1), [1], [2, 3])
    root_only = session.propose()
    session.observe(root_only, [[1, 4]], [0], 1)
    # 2 -> 1, 4; 1 -> 2, 3. From root 1: 2 (1/3), 3 (1/6), 2-1 (1/9), 2-4 (1/18), 2-1-2 (1/27)
    tree = session.propose(budget=5)
    assert paths(tree) == [(2,), (3,), (2, 1), (2, 4), (2, 1, 2)]
    assert tree.tokens[0] == 1


def test_rejected_nodes_teach_and_accepted_ones_prevail():
    session = Session(create(successors=1, order=1), [1], [2])
    tree = TokenTree([2, 5, 6, 5], [-1, 0, 0, 2])
    session.observe(tree, [[6], [11], [5], [12]], [0, 2], 5)
    # After 5 both 11 (rejected) and 12 (a later rejected node) were seen, after 6 the token 5, after 2 the token 6.
    assert paths(session.propose(budget=1)) == [(12,)]
    session.observe(TokenTree([5, 6, 5], [-1, 0, 1]), [[7], [8], [9]], [0], 7)
    # The root was accepted, the node behind it that holds the same token was not.
    session.observe(TokenTree([7], [-1]), [[5]], [0], 5)
    assert paths(session.propose(budget=1)) == [(7,)]


def test_two_tokens_together_know_better_than_one():
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


def test_what_was_learned_serves_the_next_request_but_its_end_does_not():
    drafter = create(order=2)
    first = Session(drafter, [1, 2, 3], [4])
    first.observe(first.propose(), [[5]], [0], 5)
    second = Session(drafter, [8, 3], [4])
    assert paths(second.propose(budget=1)) == [(5,)]
    assert drafter._tail == (3, 4)


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(recycling, "CAPACITY", 40)
    session = Session(create(order=1, successors=1), [1], [0])
    for step in range(200):
        token = step % 20
        session.observe(TokenTree([session.context.tokens[-1]], [-1]), [[token]], [0], token)
        session.drafter._rows[(1000 + step,)] = [1]
        assert len(session.drafter._rows) <= 41
    assert all((1000 + step,) in session.drafter._rows for step in range(190, 200))


@pytest.fixture(scope="module")
def target():
    return HuggingFaceTarget(tiny_model())


def test_a_tree_cut_by_the_context_window_is_learned_from_as_it_was_verified():
    target = HuggingFaceTarget(tiny_model(max_position_embeddings=24))
    prompt = [5, 9, 14, 3] * 4
    expected = decode(target, NONE, FIXED_0, prompt, Sampling(), eos_ids=[])
    drafter = create()
    for _ in range(2):
        assert decode(target, drafter, lengths.create("full"), prompt, Sampling(), eos_ids=[]).token_ids == (
            expected.token_ids
        )
    assert all(0 <= token < VOCABULARY for row in drafter._rows.values() for token in row)


def test_tau_on_the_reference_target(shared, reference_model):
    """Rows for two tokens together guess better than the published method's, which know one token at a time."""
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
