"""Lookahead: the window and the pool by hand, our one tree, and the target's own output whatever the steps are like."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.lookahead.drafter import DEFAULTS
from ianvs_specdec.drafters.lookahead.official import Window
from ianvs_specdec.engine import Context, Observation, Output, TokenTree
from ianvs_specdec.targets.registry import target_of
from tests.support.budgets import Budgets
from tests.support.requests import decoded
from tests.support.tiny import VOCABULARY, tiny_model

BEST = 9.0


def logits(said):
    """Logits over 40 tokens, one row per entry of ``said``, which is the best of its row."""
    rows = torch.zeros(len(said), 40)
    rows[torch.arange(len(said)), torch.tensor(said)] = BEST
    return Output(rows)


class Session:
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
        self.drafter.observe(Observation(tree, logits(said), list(path), said[path[-1]]))


def paths(tree, nodes=None):
    nodes = range(1, len(tree)) if nodes is None else nodes
    return [tuple(tree.tokens[i] for i in tree.path_to(node)[1:]) for node in nodes]


def test_the_window_fills_row_by_row_then_gives_up_the_oldest():
    window = Window(level=4, first_row=[11, 12, 13])  # width 2
    tokens, parents = [10], [-1]
    assert window.hang(tokens, parents) == [0, 1, 2, 3]
    assert (tokens, parents) == ([10, 11, 12, 13], [-1, 0, 1, 2])
    assert window.advance([20, 21, 22, 23]) == []
    assert window.noted() == [[12, 13], [21, 22, 23], None]

    tokens, parents = [20], [-1]
    assert window.hang(tokens, parents) == [3, 4, 5]
    assert (tokens, parents) == ([20, 12, 13, 21, 22, 23], [-1, 0, 1, 0, 1, 2])
    assert window.advance([31, 32, 33]) == []
    assert window.noted() == [[13], [22, 23], [32, 33]]

    tokens, parents = [30, 1], [-1, 0]  # behind a guess
    assert window.hang(tokens, parents) == [5, 6]
    assert (tokens, parents) == ([30, 1, 13, 22, 23, 32, 33], [-1, 0, 0, 0, 2, 3, 4])
    assert window.advance([42, 43]) == [(30, (22, 32, 42)), (13, (23, 33, 43))]
    assert window.noted() == [[23], [32, 33], [42, 43]]


def test_the_official_start_is_drawn_anew_from_every_prompt():
    drafter = drafters.create("lookahead", {"level": 4, "window": 3, "start": "official"})
    for prompt in ([3, 1, 4, 1, 5], [3, 1, 4, 1, 5], [9, 2, 6]):
        draw = random.Random(10)
        tree = Session(prompt, drafter=drafter).propose()
        assert tree.tokens == [prompt[-1], *(draw.choice(prompt) for _ in range(4))]
        assert tree.scouts == {1, 2, 3, 4}
        assert tree.notes == {"ctx": len(prompt), "window": [tree.tokens[1:], None, None], "guess": None}


@pytest.fixture
def filled():
    """An official session, level 4, in which 7 was followed by 1 2 3, 1 2 4 and 5 6 8, in this order."""
    session = Session([7, 9], start="official", level=4, window=2, guess=3)
    session.drafter._pool.add([(7, (1, 2, 3)), (7, (1, 2, 4)), (7, (5, 6, 8))])
    session.context.tokens.append(7)
    return session


def test_official_guesses_share_nodes_and_lack_the_token_that_is_never_accepted(filled):
    tree = filled.propose()
    assert paths(tree, [1, 2, 3, 4]) == [(5,), (5, 6), (1,), (1, 2)]
    assert tree.scouts == set(range(5, len(tree)))
    assert tree.notes["guess"] == [1, 2, 3, 1, 2, 4, 5, 6, 8]


@pytest.mark.parametrize("start", ["official", "prompt"])
def test_a_step_without_the_whole_tree_leaves_the_window_as_it_is(start):
    session = Session([3, 1, 4, 1, 5], start=start)
    tree = session.propose()
    session.observe(TokenTree.chain(5), [6])
    session.observe(tree.truncated(1), [7, 8])
    assert session.propose().tokens[1:] == tree.tokens[1:]


def test_what_followed_a_pair_comes_before_what_followed_a_token():
    session = Session([1, 2, 3, 9, 2, 4, 1, 2], level=2, guess=2, window=1)
    tree = session.propose(2)
    assert paths(tree) == [(3,), (4,)]
    session = Session([1, 2, 3, 1, 2, 4, 1, 2], level=2, guess=2, window=1)
    assert paths(session.propose(2)) == [(4,), (3,)]  # the same pair twice: the latest first
    session = Session([1, 3, 1, 4, 1, 3, 9, 1], level=2, guess=1, window=1)
    assert paths(session.propose(1)) == [(3,)]  # seen again, it is the latest


def test_guesses_are_chained_the_likeliest_first():
    # After (1, 2) the text had 3, then (2, 3) 4, then (3, 4) 1 once and 5 the other time.
    session = Session([1, 2, 3, 4, 5, 1, 2, 3, 4, 1, 2], level=5, guess=2, window=1)
    assert paths(session.propose(3)) == [(3,), (3, 4), (3, 4, 1)]
    by_depth = Session([1, 2, 3, 4, 5, 1, 2, 3, 4, 1, 2], level=3, guess=9, window=1).propose()
    assert max(map(len, paths(by_depth)[:-1])) == 2


def test_a_small_budget_shortens_the_row_first():
    text = [1, 2, 3, 4, 1]
    full = Session(text, level=4, guess=1, window=3).propose()
    assert len(full) == 7
    for budget in range(1, 7):
        session = Session(text, level=4, guess=1, window=3)
        tree = session.propose(budget)
        assert tree.tokens == full.tokens[: budget + 1]
        row = full.tokens[4:]
        session.observe(tree, [30 + node for node in range(len(tree))])
        spoken = max(budget - 3, 0)
        assert session.propose().tokens[-3:] == [*range(34, 34 + spoken), *row[spoken:]]


def test_nothing_is_drafted_beyond_what_is_left_to_say():
    text = [1, 2, 3, 4, 1]
    assert len(Session(text, remaining=1).propose()) == 1
    tree = Session(text, remaining=3, window=1).propose()
    assert paths(tree)[:2] == [(2,), (2, 3)]
    assert (2, 3, 4) not in paths(tree)


def test_nothing_is_left_of_an_earlier_request():
    drafter = drafters.create("lookahead")
    session = Session([1, 2, 3, 4, 1], drafter=drafter)
    session.observe(tree := session.propose(), [20] * len(tree))
    again = Session([1, 2, 3, 4, 1], drafter=drafter).propose()
    assert again.tokens == tree.tokens
    assert Session([20, 3], drafter=drafter).propose(100).parents == list(range(-1, 4))


# ALiBi, verified branch by branch; a state that cannot be rolled back; a window that ends within the output.
@pytest.mark.parametrize("architecture", ["bloom", "mamba", "gpt2"])
@pytest.mark.parametrize("start", ["official", "prompt"])
def test_output_is_the_targets_own_however_uneven_the_steps(start, architecture):
    target, rng = target_of(tiny_model(architecture)), random.Random(1)
    prompts = [[5], [6, 7] * 4, [rng.randrange(VOCABULARY) for _ in range(80)]]
    settings = [{}, {"repetition_penalty": 1.3}, {"temperature": 0.9, "seed": 4}]
    drafter = drafters.create("lookahead", {"level": 4, "window": 3, "guess": 3, "start": start})
    for prompt, given in itertools.product(prompts if architecture == "gpt2" else prompts[:2], settings):
        request = prompt, Sampling(max_tokens=20, **given)
        expected = decoded(target, drafters.create("autoregressive"), "fixed:0", *request, eos_ids=[2], rule="coupled")
        length = Budgets(lambda _, step: (100, 0, 1, 5)[step % 4])
        got = decoded(target, drafter, length, *request, eos_ids=[2], rule="coupled")
        assert (got.token_ids, got.finish_reason) == (expected.token_ids, expected.finish_reason)
        from_prefill = start == "prompt" or len(prompt) == 1
        assert sum(step.emitted for step in got.trace.steps) == len(got.token_ids) - from_prefill


@pytest.mark.parametrize("start", DEFAULTS)
def test_level_must_leave_room_for_a_guess(start):
    with pytest.raises(UserError, match="level must be a whole number from 2, not 1") as caught:
        drafters.create("lookahead", {"level": 1, "start": start})
    assert caught.value.key == "level"
