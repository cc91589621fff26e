"""Drafts copied from the context or from a predicted output."""

from __future__ import annotations

import random

import torch

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.predicted_output import PredictedOutput
from ianvs_specdec.drafters.prompt_lookup import PromptLookup
from ianvs_specdec.engine import Context, Output


def context_of(tokens, remaining=100):
    return Context(list(tokens), 1, remaining, Sampling(), torch.Generator())


def draft(tokens, budget=5, max_ngram=3, remaining=100):
    drafter, context = PromptLookup(max_ngram), context_of(tokens, remaining)
    drafter.begin(None, context, Output(torch.zeros(1, 1)))
    tree = drafter.propose(context, budget)
    assert tree.is_chain
    assert tree.tokens[0] == tokens[-1]
    return tree.tokens[1:]


def by_search(tokens, budget, max_ngram):
    """By definition: what followed the latest earlier occurrence of the longest suffix."""
    for n in range(min(max_ngram, len(tokens) - 1), 0, -1):
        suffix = tokens[-n:]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                extended = list(tokens)
                for i in range(budget):
                    extended.append(extended[start + n + i])
                return extended[len(tokens) :]
    return []


def test_repetitions_are_drafted_in_full_length():
    assert draft([5, 1, 2, 1, 2], budget=5) == [1, 2, 1, 2, 1]
    assert draft([4, 4], budget=3) == [4, 4, 4]


def test_no_more_is_drafted_than_can_be_emitted():
    assert draft([1, 2, 3, 1], budget=5, remaining=2) == [2]
    assert draft([1, 2, 3, 1], budget=5, remaining=1) == []


def test_the_index_grows_with_the_context_and_equals_a_search():
    rng = random.Random(0)
    for max_ngram in (1, 2, 4):
        tokens = [rng.randrange(4) for _ in range(3)]
        drafter, context = PromptLookup(max_ngram), context_of(tokens)
        drafter.begin(None, context, Output(torch.zeros(1, 1)))
        for _ in range(60):
            assert drafter.propose(context, 6).tokens[1:] == by_search(context.tokens, 6, max_ngram)
            context.tokens += [rng.randrange(4) for _ in range(rng.randrange(1, 4))]
        drafter.begin(None, context_of([8, 9]), Output(torch.zeros(1, 1)))
        assert drafter.propose(context_of([8, 9]), 6).tokens == [9]


TEXT = list(range(100, 200))


class Request:
    """A request with one prompt token, whose output is fed step by step."""

    def __init__(self, prediction, resync=1, remaining=1000):
        self.drafter = PredictedOutput(resync)
        self.context = Context([1], 1, remaining, Sampling(), torch.Generator(), prediction=prediction)
        self.begun = False

    def after(self, *tokens, budget=1000):
        """The draft after these further output tokens."""
        self.context.tokens += tokens
        if not self.begun:
            self.drafter.begin(None, self.context, Output(torch.zeros(1, 1)))
            self.begun = True
        tree = self.drafter.propose(self.context, budget)
        assert tree.is_chain
        assert tree.tokens[0] == self.context.tokens[-1]
        return tree.tokens[1:]


def test_right_predictions_get_longer_drafts():
    request = Request(TEXT)
    assert request.after(100) == TEXT[1:17]
    assert request.after(*TEXT[1:18]) == TEXT[18:50]
    assert request.after(*TEXT[18:51], budget=5) == TEXT[51:56]
    assert request.after(*TEXT[51:57]) == TEXT[57:100]
    assert request.after(*TEXT[57:100]) == []


def test_drafts_fit_budget_and_remaining_tokens():
    assert Request(TEXT, remaining=4).after(100) == [101, 102, 103]
    assert Request(TEXT, remaining=1).after(100) == []
    assert Request(TEXT).after(100, budget=1) == [101]
    assert Request([]).after(100) == []
    assert Request([100]).after(100) == []


def test_after_a_divergence_the_output_is_found_again():
    inserted, deleted = Request(TEXT), Request(TEXT)
    inserted.after(100)
    assert inserted.after(101, 7, 8, 102)[:2] == [103, 104]
    deleted.after(100)
    assert deleted.after(101, 120)[:2] == [121, 122]
    assert deleted.after(110)[:2] == [111, 112], "behind the position, if there is nothing ahead"


def test_matches_below_resync_do_not_count():
    request = Request(TEXT, resync=2)
    request.after(100)
    assert request.after(7, 150)[:1] == [103], "150 alone is not enough"
    assert request.after(151)[:1] == [152]


def test_a_useless_prediction_is_only_probed():
    request = Request(TEXT)
    assert [len(request.after(token)) for token in (1, 2, 3, 4)] == [16, 2, 2, 2]
    assert len(request.after(103)) == 2
    assert len(request.after(104)) == 16, "a probe was right"
