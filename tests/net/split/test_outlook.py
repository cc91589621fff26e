"""Outcomes of a verification for which an edge drafts ahead."""

from __future__ import annotations

import pytest

from ianvs_specdec.backends.split.edge.drafts import Drafts, RemoteTarget
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Drafter

ODDS = (0.8, 0.12, 0.05)
"""Of the tokens 10 times the depth, and of the two after each."""


class Known(Drafter):
    """Says the same behind every token of a position."""

    supports_continuations = True

    def __init__(self, odds=ODDS):
        self.odds, self.steps = odds, []

    def fork(self):
        return self

    def begin(self, target, context, prefill):
        pass

    def continuations(self, context):
        return Tree(self, len(context.tokens))


class Tree:
    def __init__(self, drafter, held):
        self.drafter, self.positions = drafter, [held]

    def grow(self, nodes):
        self.drafter.steps.append(len(nodes))
        found = []
        for node in nodes:
            position = self.positions[node]
            found.append([(10 * position + n, odds) for n, odds in enumerate(self.drafter.odds)])
            self.positions += [position + 1] * len(self.drafter.odds)
        return found


def drafting(drafter):
    target = RemoteTarget(1000, None, None, None)
    drafts = Drafts(drafter, target, [1, 2], Sampling(max_tokens=50), ())
    drafts.confirm([3])
    return drafts


def sent(drafts, length=2):
    return drafts.next(length, ()).tree


def ready(drafts, length=2):
    while drafts.grow(length, ()):
        pass


@pytest.mark.parametrize(
    ("node", "token", "draft"),
    [(2, 51, [60, 70]), (1, 41, [50, 60]), (0, 32, [40, 50])],
)
def test_drafts_for_likely_outcomes_are_ready(node, token, draft):
    drafter = Known()
    drafts = drafting(drafter)
    assert sent(drafts).tokens[1:] == [30, 40]
    ready(drafts)
    steps = len(drafter.steps)
    drafts.apply_verdict(node, token)
    assert (drafts.ahead, drafts.hits) == (1, 1)
    assert sent(drafts).tokens[1:] == draft
    assert len(drafter.steps) == steps, "nothing was left to draft"


def test_unexpected_outcome_drafts_again():
    drafter = Known()
    drafts = drafting(drafter)
    sent(drafts)
    ready(drafts)
    drafts.apply_verdict(1, 777)
    assert (drafts.ahead, drafts.hits) == (1, 0)
    assert sent(drafts).tokens[1:] == [50, 60]


def test_draft_ahead_follows_the_whole_draft():
    drafts = drafting(Known())
    sent(drafts)
    assert drafts.next_ahead(2) is None, "nothing is drafted there yet"
    ready(drafts)
    assert drafts.next_ahead(2).tree.tokens == [50, 60, 70]
    ready(drafts)
    assert drafts.next_ahead(2) is None, "it would seldom be reached"
    drafts.apply_verdict(2, 50)
    assert [draft.tree.tokens[0] for draft in drafts.sent] == [50]
    drafts.apply_verdict(0, 61)
    assert not drafts.sent
    assert drafts.ahead == drafts.hits == 2
    assert sent(drafts).tokens[1:] == [70, 80]


@pytest.mark.parametrize(("node", "token"), [(2, 51), (1, 777)])
def test_other_outcome_invalidates_drafts_ahead(node, token):
    drafts = drafting(Known())
    sent(drafts)
    ready(drafts)
    assert drafts.next_ahead(2)
    drafts.apply_verdict(node, token)
    assert not drafts.sent
