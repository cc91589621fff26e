"""Predicted output: followed where it comes true, found again where it does not."""

from __future__ import annotations

import torch

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.predicted_output import PredictedOutput
from ianvs_specdec.engine import Context, Output

TEXT = list(range(100, 200))


class Request:
    """A request with one prompt token, whose output is told bit by bit."""

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


def test_the_prediction_is_followed_with_longer_drafts_as_long_as_it_comes_true():
    request = Request(TEXT)
    assert request.after(100) == TEXT[1:17]
    assert request.after(*TEXT[1:18]) == TEXT[18:50]
    assert request.after(*TEXT[18:51], budget=5) == TEXT[51:56]
    assert request.after(*TEXT[51:57]) == TEXT[57:100]
    assert request.after(*TEXT[57:100]) == []


def test_no_more_than_can_be_used():
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


def test_the_longest_agreement_counts_then_the_nearest_ahead():
    prediction = [10, 11, 20, 30, 11, 21, 30, 40, 11, 22, 30, 50]
    ahead = Request(prediction)
    ahead.after(10)
    assert ahead.after(11, 21, 30)[:1] == [40], "21 30 agrees in two tokens"
    nearest = Request(prediction)
    nearest.after(10)
    assert nearest.after(11, 5, 30)[:1] == [11], "30 alone: the first place ahead"
    farther = Request([30, 10, 11, 12, 13, 14, 15, 30, 40])
    farther.after(30)
    assert farther.after(10, 11, 30) == [40], "the place behind is nearer"


def test_fewer_tokens_than_asked_for_do_not_count():
    request = Request(TEXT, resync=2)
    request.after(100)
    assert request.after(7, 150)[:1] == [103], "150 alone is not enough"
    assert request.after(151)[:1] == [152]


def test_a_useless_prediction_is_only_probed():
    request = Request(TEXT)
    assert [len(request.after(token)) for token in (1, 2, 3, 4)] == [16, 2, 2, 2]
    assert len(request.after(103)) == 2
    assert len(request.after(104)) == 16, "a probe was right"
