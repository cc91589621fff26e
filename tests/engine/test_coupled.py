"""Coupled sampling: the noise is what it should be, the output is distributed as the target's own samples, and it does
not depend on what was drafted."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree, acceptance
from ianvs_specdec.engine.sampling import Noise, Processor
from tests.support.slow_cases import slow_unless

from .test_acceptance import DRAFT, FILTERED, PLAIN, PROMPT, TARGET, VOCABULARY, chi_square_p_value, exact_pairs

CPU = torch.device("cpu")
FEW_DRAWS, DRAWS = 700, 2000
SHAPES = ("nothing", "chain", "tree", "blind tree")


def coupled(sampling, noise):
    return acceptance.create(sampling, PROMPT, torch.Generator(), "coupled", noise)


def drafted(shape, root, output, noise, rng):
    """Two levels of drafts after ``output``: what the draft table yields with the same noise, and the next best in a
    tree; guessed without looking at the noise in a blind tree."""
    if shape == "nothing":
        return TokenTree.chain(root)
    width = 1 if shape == "chain" else 2
    tree = TokenTree([root], [-1])
    level = [0]
    for depth in range(2):
        following = []
        for node in level:
            table = DRAFT[min(len(output) + depth, 2), tree.tokens[node]].log_softmax(-1)
            if shape == "blind tree":
                tokens = torch.randperm(VOCABULARY, generator=rng)[:width]
            else:
                tokens = (table + noise.at(len(PROMPT) + len(output) + depth)).topk(width).indices
            for token in tokens.tolist():
                tree.tokens.append(token)
                tree.parents.append(node)
                following.append(len(tree) - 1)
        level = following
    return tree


def emitted(rule, shape, noise, rng, count):
    """The first ``count`` output tokens, in as many steps as it takes."""
    output = []
    while len(output) < count:
        tree = drafted(shape, [*PROMPT, *output][-1], output, noise, rng)
        levels = [min(len(output) + depth, 2) for depth in tree.depths]
        logits = torch.stack([TARGET[level, token] for level, token in zip(levels, tree.tokens, strict=True)])
        verdict = rule(tree, logits)
        output += [*(tree.tokens[node] for node in verdict.path[1:]), verdict.token]
    return output[:count]


def outputs(make_rule, shape, sampling, draws, count):
    rng = torch.Generator().manual_seed(5)
    noises = (Noise(seed, VOCABULARY, CPU) for seed in range(draws))
    return [emitted(make_rule(sampling, noise), shape, noise, rng, count) for noise in noises]


def assert_follows_the_target(make_rule, shape, sampling, draws=FEW_DRAWS):
    counts = torch.zeros(VOCABULARY, VOCABULARY)
    for first, second in outputs(make_rule, shape, sampling, draws, 2):
        counts[first, second] += 1
    p_value = chi_square_p_value(counts, exact_pairs(sampling) * draws)
    assert p_value > 0.001, f"emitted tokens do not follow the target: chi-square p = {p_value:.2g}"


def assert_does_not_depend_on_drafts(make_rule, shape, sampling, draws=100):
    alone = outputs(coupled, "nothing", sampling, draws, 4)
    # Where CI is set, pytest would work out the difference of these lists for a minute.
    same = outputs(make_rule, shape, sampling, draws, 4) == alone
    assert same, "the output depends on the drafts"


@pytest.mark.parametrize("draws", slow_unless([FEW_DRAWS, DRAWS], FEW_DRAWS.__eq__))
@pytest.mark.parametrize("sampling", [PLAIN, *FILTERED], ids=str)
def test_over_seeds_the_output_follows_the_target(sampling, draws):
    """With the tree, which stands for all shapes since the output does not depend on them."""
    assert_follows_the_target(coupled, "tree", sampling, draws)


@pytest.mark.parametrize("sampling", [PLAIN, *FILTERED], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_output_does_not_depend_on_drafts(shape, sampling):
    assert_does_not_depend_on_drafts(coupled, shape, sampling)


def wrong(cls):
    return lambda sampling, noise: cls(Processor(sampling, PROMPT, CPU), noise, len(PROMPT))


def test_near_ties_are_told_as_the_gap_of_what_was_compared():
    noise = Noise(3, VOCABULARY, CPU)
    tree = TokenTree.chain(PROMPT[-1])
    scores = TARGET[0, PROMPT[-1]].log_softmax(-1) + noise.at(len(PROMPT))
    first, second = scores.topk(2).values.tolist()
    verdict = coupled(PLAIN, noise)(tree, TARGET[0, PROMPT[-1]][None])
    assert (verdict.token, verdict.gaps) == (int(scores.argmax()), [pytest.approx(first - second, abs=1e-5)])
    only = coupled(Sampling(temperature=1.0, top_k=1), noise)(tree, TARGET[0, PROMPT[-1]][None])
    assert only.gaps == [math.inf]


def test_noise_is_a_function_of_seed_and_position():
    one, other = Noise(7, 100, CPU), Noise(7, 100, CPU)
    early = one.at(3).clone()
    for position in range(200):
        assert torch.equal(one.at(position), one.at(position))
    assert torch.equal(one.at(3), early)
    assert torch.equal(other.at(150), one.at(150))
    keys = [(1, 23), (12, 3), (0, 0), (0, 1), (1, 0), (2**40, 1), (-1, 1)]
    drawn = [Noise(seed, 100, CPU).at(position) for seed, position in keys]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))


def test_noise_is_the_same_on_every_machine():
    """Recorded once: whoever changes how noise is made changes every coupled output there is."""
    recorded = [2.6934106, -0.1253651, 1.0988789]
    torch.testing.assert_close(Noise(0, 3, CPU).at(5), torch.tensor(recorded), rtol=0, atol=1e-6)


def test_noise_has_the_standard_gumbel_distribution_and_no_memory():
    """Mean, variance and tail; no correlation between neighbouring positions, seeds or tokens."""
    size = 4000
    rows = torch.stack([Noise(seed, size, CPU).at(position) for seed in range(4) for position in range(10, 14)])
    count = rows.numel()
    assert abs(float(rows.mean()) - 0.5772) < 4 * math.sqrt(1.645 / count)
    assert abs(float(rows.var()) - math.pi**2 / 6) < 0.05
    assert abs(float((rows > 5).double().mean()) - (1 - math.exp(-math.exp(-5)))) < 4 * math.sqrt(0.0067 / count)
    correlations = torch.corrcoef(rows) - torch.eye(len(rows))
    assert float(correlations.abs().max()) < 5 / math.sqrt(size)
    shifted = torch.corrcoef(torch.stack([rows[:, 1:].flatten(), rows[:, :-1].flatten()]))
    assert abs(float(shifted[0, 1])) < 4 / math.sqrt(count)
