"""Longest matches in context and datastore, and the fallback to a head."""

from __future__ import annotations

import random

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.datastore import Datastore
from ianvs_specdec.drafters.suffix import REFRESHED, Suffix, SuffixAutomaton
from ianvs_specdec.engine import Context, Drafter, Output, TokenTree
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.tiny import VOCABULARY, tiny_model


def context_of(tokens, remaining=100):
    return Context(list(tokens), 1, remaining, Sampling(), torch.Generator())


def begun(drafter, tokens, **context):
    asked = context_of(tokens, **context)
    drafter.begin(None, asked, Output(torch.zeros(1, 1)))
    return asked


def draft(tokens, budget=100, drafter=None, **context):
    drafter = drafter or Suffix()
    return drafter.propose(begun(drafter, tokens, **context), budget).tokens[1:]


def latest_match(tokens):
    """By definition: the longest suffix that occurred before, and the position after its latest occurrence."""
    for n in range(len(tokens) - 1, 0, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                return n, end
    return 0, 0


@pytest.mark.parametrize("ids", [1, 2, 3, 8])
def test_the_automaton_equals_a_search(ids):
    rng = random.Random(ids)
    for _ in range(20):
        automaton, tokens = SuffixAutomaton(), []
        for _ in range(REFRESHED):
            tokens.append(rng.randrange(ids))
            automaton.extend(tokens[-1])
            assert (automaton.matched, automaton.followed_at if automaton.matched else 0) == latest_match(tokens)


def test_longer_matches_get_longer_drafts():
    text = list(range(10, 60))
    assert draft([*text, 1, 10]) == [11, 12, 13, 14]
    assert draft([*text, 1, 10, 11]) == list(range(12, 20))
    assert draft([*text, 1, *range(10, 20)]) == list(range(20, 36))
    assert draft([*text, 1, 10], budget=2) == [11, 12]
    assert draft([*text, 1, 10], remaining=3) == [11, 12]
    assert draft([*text, 1, 10], remaining=1) == []
    assert draft(text) == []
    assert draft([1]) == []


def test_the_latest_occurrence_counts_and_a_repetition_goes_on():
    assert draft([1, 2, 5, 1, 2, 6, 9, 1, 2], budget=1) == [6]
    assert draft([5, 1, 2, 1, 2], budget=5) == [1, 2, 1, 2, 1]


@pytest.fixture
def store(tmp_path):
    Datastore.build([[20, 21, 22, 23], [20, 21, 22, 24], [20, 21, 22, 24], [1, 2, 30]], VOCABULARY).save(
        tmp_path / "store"
    )
    return tmp_path / "store"


def test_the_longer_match_wins_and_the_context_among_equals(store):
    drafter = Suffix(datastore=store)
    assert draft([22, 5, 20, 21, 22], drafter=drafter, budget=1) == [24]
    assert draft([9, 20, 21, 22], drafter=drafter) == [24, 23], "what followed more often comes first"
    assert draft([1, 2, 40, 5, 1, 2], drafter=drafter, budget=1) == [40]
    assert draft([2, 40, 5, 1, 2], drafter=drafter) == [30]
    assert draft([9, 20, 21, 22], drafter=Suffix(datastore=store, min_match=4)) == []


class Head(Drafter):
    """A stand-in for a draft head: drafts two branches and records its calls."""

    def __init__(self):
        self.calls = []

    def prepare(self, target):
        self.calls.append("prepare")
        return (-1,)

    def begin(self, target, context, prefill):
        self.calls.append("begin")

    def propose(self, context, budget):
        self.calls.append(budget)
        return TokenTree([context.tokens[-1], 50, 51], [-1, 0, 0])

    def observe(self, observation):
        self.calls.append("observe")


def test_the_head_drafts_if_no_match_is_long(monkeypatch, tmp_path):
    head = Head()
    monkeypatch.setattr(
        drafters, "create", lambda name, settings: head if (name, *settings) == ("eagle", "head") else None
    )
    drafter = Suffix(head=tmp_path)
    assert drafter.prepare(None) == (-1,)
    short = begun(drafter, [1, 2, 3, 4, 9, 1, 2, 3, 4])
    assert drafter.propose(short, 7).tokens == [4, 50, 51]
    drafter.observe(None)
    enough = begun(drafter, [1, 2, 3, 4, 5, 6, 9, 1, 2, 3, 4, 5])
    assert drafter.propose(enough, 1).tokens == [5, 6]
    drafter.observe(None)
    assert head.calls == ["prepare", "begin", 7, "observe", "begin", "observe"]


@pytest.fixture(scope="module")
def target():
    return HuggingFaceTarget(tiny_model(vocab_size=16))


def test_a_datastore_of_another_model_is_refused(target, store):
    with pytest.raises(UserError, match="vocabulary of 64 tokens, the model one of 16"):
        drafters.create("suffix", {"datastore": store}).prepare(target)
