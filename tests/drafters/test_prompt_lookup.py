from __future__ import annotations

import random

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
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
    """The definition: the latest earlier occurrence of the longest suffix, and what followed it."""
    for n in range(min(max_ngram, len(tokens) - 1), 0, -1):
        suffix = tokens[-n:]
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == suffix:
                extended = list(tokens)
                for i in range(budget):
                    extended.append(extended[start + n + i])
                return extended[len(tokens) :]
    return []


def test_the_longest_suffix_wins_and_the_latest_occurrence():
    assert draft([1, 2, 3, 4, 9, 2, 3, 5, 6, 7, 1, 2, 3], budget=2) == [4, 9]
    assert draft([2, 3, 4, 9, 2, 3, 5, 6, 7, 2, 3], budget=2) == [5, 6]
    assert draft([1, 2, 3], budget=5) == []
    assert draft([7], budget=5) == []


def test_a_repetition_is_drafted_to_the_full_length():
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


@pytest.mark.parametrize("value", [0, -1, 1.5, "three"])
def test_max_ngram_must_be_a_positive_number(value):
    from ianvs_specdec.common.errors import UserError

    with pytest.raises(UserError, match="max_ngram must be"):
        drafters.create("prompt_lookup", {"max_ngram": value})
