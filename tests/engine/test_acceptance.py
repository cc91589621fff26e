"""Whatever is drafted, the emitted tokens must be distributed as the target's own samples.

Each case draws many token pairs through the acceptance rule and compares them, by a chi-square test, with the
exact distribution computed from transformers' own processors. The same check rejects deliberately wrong acceptance
rules with as few draws as the fast cases have.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest
import torch

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree, acceptance
from ianvs_specdec.engine.acceptance import Greedy, Rejection
from ianvs_specdec.engine.sampling import Noise, Processor
from tests.support.few import few

from .test_sampling import by_transformers

VOCABULARY = 5
DRAWS = 3000
PROMPT = [0, 3, 3, 1]
# Target logits after a path of output tokens, by its length and last token; drafts come from a table of their own.
TARGET = torch.randn(3, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(4)) * 1.3
DRAFT = torch.randn(3, VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(5)) * 1.3
# At the first position the draft is sure of a token that the target seldom takes, and just short on another: there
# every mistake in the bookkeeping between siblings shows.
TARGET[0, PROMPT[-1]] = torch.tensor([0.1, 0.54, 0.12, 0.12, 0.12]).log()
DRAFT[0, PROMPT[-1]] = torch.tensor([0.6, 0.1, 0.1, 0.1, 0.1]).log()
DRAFT_PROBABILITIES = DRAFT.softmax(-1)


@dataclass(frozen=True)
class Shape:
    """How a draft is made: ``width`` children per node, ``depth`` levels, drawn from the draft table or its best.

    ``guesses``: chains of ``depth`` tokens guessed blindly hang off the root, often several with the same beginning.
    """

    width: int
    depth: int
    drawn: bool
    guesses: bool = False


CHAIN = Shape(1, 2, drawn=True)
CHAIN_OF_BEST = Shape(1, 2, drawn=False)
TREE = Shape(2, 2, drawn=True)
WIDE_TREE = Shape(4, 1, drawn=True)
TREE_OF_BEST = Shape(3, 2, drawn=False)
GUESSES = Shape(5, 2, drawn=False, guesses=True)
SHAPES = [CHAIN, CHAIN_OF_BEST, TREE, WIDE_TREE, TREE_OF_BEST, GUESSES]
FEW_DRAWS = {**dict.fromkeys(SHAPES, 700), TREE_OF_BEST: 1300, WIDE_TREE: 2000}
"""With which each wrong rule is found out."""

PLAIN = Sampling(temperature=1.0)
FILTERED = [
    Sampling(temperature=0.7, top_k=3),
    Sampling(temperature=1.3, top_p=0.8),
    Sampling(temperature=1.0, repetition_penalty=1.8),
]


def rejection(sampling, generator):
    return acceptance.create(sampling, PROMPT, generator)


def draw_tree(shape, root, generator):
    if shape.guesses:
        guesses = torch.randint(VOCABULARY, (shape.depth * shape.width,), generator=generator).tolist()
        starts = [0 if i % shape.depth == 0 else i for i in range(len(guesses))]
        return TokenTree([root, *guesses], [-1, *starts])
    tree = TokenTree([root], [-1], {} if shape.drawn else None)
    level = [0]
    for depth in range(shape.depth):
        following = []
        for node in level:
            q = DRAFT_PROBABILITIES[depth, tree.tokens[node]]
            if shape.drawn:
                children = torch.multinomial(q, shape.width, generator=generator)
                tree.probabilities[node] = q
            else:
                children = q.topk(shape.width).indices
            for token in children.tolist():
                tree.tokens.append(token)
                tree.parents.append(node)
                following.append(len(tree) - 1)
        level = following
    return tree


def exact_pairs(sampling):
    """Probability of every pair of first two output tokens, ``[vocabulary, vocabulary]``."""

    def after(tokens):
        depth, last = len(tokens), [*PROMPT, *tokens][-1]
        scores = by_transformers(sampling, [*PROMPT, *tokens], TARGET[depth, last])
        return scores.softmax(-1)

    return torch.stack([after([])[first] * after([first]) for first in range(VOCABULARY)])


def chi_square_p_value(counts, expected):
    assert counts[expected == 0].sum() == 0, "a token of probability 0 was emitted"
    order = expected.flatten().argsort()
    counts, expected = counts.flatten()[order], expected.flatten()[order]
    counts, expected = counts[expected > 0], expected[expected > 0]
    rare = int((expected.cumsum(0) < 5).sum()) + 1  # cells too rare for the approximation count as one
    counts = torch.cat([counts[:rare].sum()[None], counts[rare:]])
    expected = torch.cat([expected[:rare].sum()[None], expected[rare:]])
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor((len(counts) - 1) / 2), statistic / 2))


def assert_follows_the_target(make_rule, shape, sampling, draws):
    """Two output tokens at a time: emitted by the rule or, where it emitted only one, the second from the next step."""
    generator = torch.Generator().manual_seed(11)
    counts = torch.zeros(VOCABULARY, VOCABULARY)
    for _ in range(draws):
        rule = make_rule(sampling, generator)
        output = []
        while len(output) < 2:
            tree = draw_tree(shape, [*PROMPT, *output][-1], generator)
            done = len(output)
            levels = [min(done + depth, 2) for depth in tree.depths]
            logits = torch.stack([TARGET[level, token] for level, token in zip(levels, tree.tokens, strict=True)])
            verdict = rule(tree, logits)
            output += [*(tree.tokens[node] for node in verdict.path[1:]), verdict.token]
        counts[output[0], output[1]] += 1
    p_value = chi_square_p_value(counts, exact_pairs(sampling) * draws)
    assert p_value > 0.001, f"emitted tokens do not follow the target: chi-square p = {p_value:.2g}"


def draws_of(cases):
    """Each case with few draws, and slow with many; its first value is the shape."""
    many = [(*case, draws) for case in cases for draws in (FEW_DRAWS[case[0]], DRAWS)]
    return few(many, lambda case: case[-1] < DRAWS)


@pytest.mark.parametrize(("shape", "draws"), draws_of([(shape,) for shape in SHAPES]), ids=str)
def test_sampling_follows_the_target(shape, draws):
    assert_follows_the_target(rejection, shape, PLAIN, draws)


@pytest.mark.parametrize(
    ("shape", "sampling", "draws"), draws_of(itertools.product([CHAIN, TREE_OF_BEST], FILTERED)), ids=str
)
def test_sampling_with_filters_and_penalty_follows_the_target(shape, sampling, draws):
    assert_follows_the_target(rejection, shape, sampling, draws)


class AcceptAlways(Rejection):
    def _step(self, tree, nodes, p):
        children = tree.children[nodes[0]]
        return (tree.tokens[children[0]], children[:1]) if children else super()._step(tree, nodes, p)


class ResidualNotSubtracted(Rejection):
    def _step(self, tree, nodes, p):
        token, following = super()._step(tree, nodes, p)
        return (token, following) if following else (self._draw(p), [])


class SiblingsNotRenormalised(Rejection):
    """After a rejection the mass taken from p is not given to the rest before the next sibling is tried."""

    def _step(self, tree, nodes, p):
        q = (tree.probabilities or {}).get(nodes[0])
        for child in tree.children[nodes[0]]:
            token = tree.tokens[child]
            draft = torch.nn.functional.one_hot(torch.tensor(token), len(p)).float() if q is None else q
            if self._uniform() * draft[token] < p[token]:
                return token, [child]
            if not (p - draft).gt(0).any():
                return token, [child]
            p = (p - draft).clamp(min=0)
        return self._draw(p), []


class EarlierSiblingsStayInTheDraft(Rejection):
    """Siblings drawn without replacement, judged as if they had been drawn with replacement."""

    def _step(self, tree, nodes, p):
        q = tree.probabilities.get(nodes[0])
        for child in tree.children[nodes[0]]:
            token = tree.tokens[child]
            if self._uniform() * q[token] < p[token]:
                return token, [child]
            p = (p - q).clamp(min=0)
            p = p / p.sum()
        return self._draw(p), []


class BestTakenForDrawn(Rejection):
    """Children that are point masses, judged as if they had been drawn from the draft table."""

    def _step(self, tree, nodes, p):
        level = tree.depths[nodes[0]]
        drawn_from = {node: DRAFT_PROBABILITIES[level, tree.tokens[node]] for node in nodes if tree.children[node]}
        return super()._step(TokenTree(tree.tokens, tree.parents, drawn_from), nodes, p)


class PenaltyForgetsThePath(Rejection):
    def __call__(self, tree, logits):
        extend, self._processor.extend = self._processor.extend, lambda token: None
        verdict = super().__call__(tree, logits)
        self._processor.extend = extend
        for token in [*(tree.tokens[node] for node in verdict.path[1:]), verdict.token]:
            extend(token)
        return verdict


@pytest.mark.parametrize(
    ("wrong", "shape", "sampling"),
    [
        (AcceptAlways, CHAIN, PLAIN),
        (AcceptAlways, TREE_OF_BEST, PLAIN),
        (ResidualNotSubtracted, CHAIN, PLAIN),
        (BestTakenForDrawn, CHAIN_OF_BEST, PLAIN),
        (BestTakenForDrawn, TREE_OF_BEST, PLAIN),
        (ResidualNotSubtracted, TREE, PLAIN),
        (SiblingsNotRenormalised, TREE_OF_BEST, PLAIN),
        (AcceptAlways, GUESSES, PLAIN),
        (EarlierSiblingsStayInTheDraft, WIDE_TREE, PLAIN),
        (PenaltyForgetsThePath, TREE_OF_BEST, FILTERED[2]),
    ],
)
def test_a_wrong_acceptance_rule_is_found_out(wrong, shape, sampling):
    def make_rule(sampling, generator):
        return wrong(Processor(sampling, PROMPT, generator.device), generator)

    with pytest.raises(AssertionError, match=r"do not follow|probability 0"):
        assert_follows_the_target(make_rule, shape, sampling, FEW_DRAWS[shape])


@pytest.mark.parametrize(("uniform", "accepted"), [(0.166, True), (0.167, False)])
def test_a_draft_is_accepted_up_to_the_ratio_of_its_probabilities(uniform, accepted, monkeypatch):
    """0.1 for the target, 0.6 for the draft."""
    rule = rejection(PLAIN, torch.Generator())
    monkeypatch.setattr(rule, "_uniform", lambda: uniform)
    tree = TokenTree.chain(PROMPT[-1], [0], {0: DRAFT_PROBABILITIES[0, PROMPT[-1]]})
    verdict = rule(tree, torch.stack([TARGET[0, PROMPT[-1]], TARGET[1, 0]]))
    assert verdict.path == ([0, 1] if accepted else [0])


def test_a_draft_that_the_target_rules_out_is_never_accepted(monkeypatch):
    rule = rejection(Sampling(temperature=1.0, top_k=1), torch.Generator())
    monkeypatch.setattr(rule, "_uniform", lambda: 0.0)
    tree = TokenTree.chain(PROMPT[-1], [0], {0: DRAFT_PROBABILITIES[0, PROMPT[-1]]})
    verdict = rule(tree, torch.stack([TARGET[0, PROMPT[-1]], TARGET[1, 0]]))
    assert (verdict.path, verdict.token) == ([0], 1)


def test_a_sample_never_leaves_the_draft_when_both_agree():
    """p equal to q is the edge case of an empty residual: everything is accepted."""
    generator = torch.Generator().manual_seed(0)
    q = DRAFT_PROBABILITIES[0, 1]
    for draw in range(200):
        token = draw % VOCABULARY
        verdict = rejection(PLAIN, generator)(
            TokenTree.chain(1, [token], {0: q}), torch.stack([DRAFT[0, 1], DRAFT[1, token]])
        )
        assert verdict.path == [0, 1]


def test_greedy_follows_the_argmax_down_the_tree_and_tells_the_gaps():
    tree = TokenTree([9, 1, 2, 3, 4], [-1, 0, 0, 2, 2])
    logits = torch.zeros(5, 10)
    logits[0, 2], logits[0, 5] = 2.0, 1.5
    logits[2, 4] = 1.0
    logits[4, 7], logits[4, 8] = 3.0, 2.9995
    verdict = Greedy()(tree, logits)
    assert (verdict.path, verdict.token) == ([0, 2, 4], 7)
    assert verdict.gaps == pytest.approx([0.5, 1.0, 0.0005], abs=1e-6)


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (Sampling(repetition_penalty=1.1), "rejection"),
        (Sampling(temperature=1.0), "rejection"),
        (Sampling(temperature=1.0), "coupled"),
    ],
    ids=str,
)
def test_every_rule_takes_the_longest_match_among_equal_siblings(sampling, rule):
    tree = TokenTree([9, 1, 1, 5, 2, 1], [-1, 0, 0, 1, 2, 0])
    logits = torch.full((6, 10), -100.0)
    logits[0, 1] = logits[1, 2] = logits[2, 2] = logits[4, 7] = logits[5, 2] = 100.0
    generator, noise = torch.Generator(), Noise(0, 10, torch.device("cpu"))
    verdict = acceptance.create(sampling, [9], generator, rule, noise)(tree, logits)
    assert (verdict.path, verdict.token) == ([0, 2, 4], 7)


def test_greedy_with_penalty_uses_the_history_of_the_path():
    """Token 2 wins at the root; after it, the penalty moves the argmax of the same logits to token 5."""
    logits = torch.zeros(3, 10)
    logits[:, 2], logits[:, 5] = 2.0, 1.5
    tree = TokenTree([9, 2, 2], [-1, 0, 1])
    verdict = acceptance.create(Sampling(repetition_penalty=2.0), [9], torch.Generator())(tree, logits)
    assert (verdict.path, verdict.token) == ([0, 1], 5)


@pytest.mark.parametrize(
    ("sampling", "rule"),
    [
        (Sampling(), "rejection"),
        (Sampling(repetition_penalty=1.1), "rejection"),
        (Sampling(temperature=1.0), "rejection"),
        (Sampling(temperature=1.0), "coupled"),
    ],
    ids=str,
)
def test_no_rule_accepts_a_scout_that_is_right(sampling, rule):
    tree = TokenTree([9, 1, 2, 1], [-1, 0, 1, 0], scouts=frozenset({1, 2}))
    logits = torch.full((4, 10), -100.0)
    logits[0, 1] = logits[1, 2] = logits[2, 3] = logits[3, 7] = 100.0
    generator, noise = torch.Generator(), Noise(0, 10, torch.device("cpu"))
    verdict = acceptance.create(sampling, [9], generator, rule, noise)(tree, logits)
    assert (verdict.path, verdict.token) == ([0, 3], 7)
