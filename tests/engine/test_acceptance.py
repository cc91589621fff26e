"""Whatever is drafted, the emitted tokens must be distributed as the target's own samples.

Each case draws many token pairs through the acceptance rule and compares them, by a chi-square test, with the
exact distribution computed from transformers' own processors.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest
import torch

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree, acceptance
from ianvs_specdec.engine.acceptance import Greedy
from ianvs_specdec.engine.sampling import Noise
from tests.support.slow_cases import slow_unless
from tests.support.tiny import random_tree

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
    return slow_unless(many, lambda case: case[-1] < DRAWS)


@pytest.mark.parametrize(("shape", "draws"), draws_of([(shape,) for shape in SHAPES]), ids=str)
def test_sampling_follows_the_target(shape, draws):
    assert_follows_the_target(rejection, shape, PLAIN, draws)


@pytest.mark.parametrize(
    ("shape", "sampling", "draws"), draws_of(itertools.product([CHAIN, TREE_OF_BEST], FILTERED)), ids=str
)
def test_sampling_with_filters_and_penalty_follows_the_target(shape, sampling, draws):
    assert_follows_the_target(rejection, shape, sampling, draws)


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


def test_mask_and_depths_follow_the_parents():
    rng = random.Random(3)
    for nodes in (1, 2, 5, 17, 40):
        tree = random_tree(rng, nodes)
        mask = tree.mask()
        for node in range(nodes):
            path = tree.path_to(node)
            assert (path[0], path[-1]) == (0, node)
            assert [tree.parents[i] for i in path[1:]] == path[:-1]
            assert mask[node].nonzero().flatten().tolist() == path
            assert tree.depths[node] == len(path) - 1


def test_truncated_keeps_the_shallow_nodes_and_their_probabilities():
    q = {node: torch.full((4,), float(node)) for node in range(4)}
    tree = TokenTree([9, 1, 2, 3, 4], [-1, 0, 1, 0, 3], q)
    cut = tree.truncated(1)
    assert (cut.tokens, cut.parents) == ([9, 1, 3], [-1, 0, 0])
    assert cut.probabilities is not None
    assert {node: float(row[0]) for node, row in cut.probabilities.items()} == {0: 0.0, 1: 1.0, 2: 3.0}
    assert tree.truncated(0).tokens == [9]
