"""Typical acceptance, computed by hand, and that a leaderboard can tell it is lossy."""

from __future__ import annotations

import math

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.backends.specdec import AutoregressiveLLM, MedusaSpecDecLLM
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree, acceptance
from ianvs_specdec.engine.acceptance import Greedy, Typical
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.one_sequence import OneSequence
from tests.support.requests import decoded
from tests.support.tiny import Guesser, tiny_model

PLAIN = Sampling(temperature=1.0)
SURE = [0.88, 0.06, 0.03, 0.03]  # entropy 0.49, so the ceiling 0.09 is the threshold
UNDECIDED = [0.28, 0.26, 0.24, 0.22]  # entropy 1.38, threshold 0.0752: all pass
LOPSIDED = [0.5, 0.3, 0.08, 0.12]  # entropy 1.16, threshold 0.09


def rule(sampling=PLAIN, prompt=(9,), seed=0):
    return acceptance.create(sampling, prompt, torch.Generator().manual_seed(seed), "typical")


def judged(tree, *distributions, sampling=PLAIN, prompt=(9,), seed=0):
    return rule(sampling, prompt, seed)(tree, torch.tensor(distributions).log())


def test_by_hand():
    chain = TokenTree.chain(9, [2, 3])
    assert judged(chain, UNDECIDED, LOPSIDED, SURE).path == [0, 1, 2]
    assert judged(TokenTree.chain(9, [2, 2]), UNDECIDED, LOPSIDED, SURE).path == [0, 1]
    assert judged(TokenTree.chain(9, [1]), SURE, SURE).path == [0]
    # Here the share of exp(-entropy) is 0.18.
    assert judged(TokenTree.chain(9, [1]), [0.85, 0.12, 0.03, 0.0], SURE).path == [0, 1]


@pytest.mark.parametrize(
    ("distribution", "draft", "accepted"),
    [
        ([0.8, 0.1, 0.05, 0.05], 1, True),  # above the ceiling of 0.09
        ([0.8, 0.085, 0.06, 0.055], 1, False),
        ([0.4, 0.3, 0.21, 0.09], 3, True),  # entropy 1.27, threshold 0.0841
        ([0.4, 0.3, 0.22, 0.08], 3, False),  # entropy 1.26, threshold 0.0849
    ],
)
def test_just_above_and_just_below_the_threshold(distribution, draft, accepted):
    assert judged(TokenTree.chain(9, [draft]), distribution, SURE).path == ([0, 1] if accepted else [0])


def test_the_longest_path_wins_then_the_likeliest():
    short_and_likely = TokenTree([9, 0, 3, 3], [-1, 0, 0, 2])
    assert judged(short_and_likely, UNDECIDED, SURE, UNDECIDED, SURE).path == [0, 2, 3]
    twice_as_long = TokenTree([9, 2, 1, 0], [-1, 0, 0, 0])
    assert judged(twice_as_long, UNDECIDED, SURE, SURE, SURE).path == [0, 3]
    second_level = TokenTree([9, 0, 1, 3, 0], [-1, 0, 0, 1, 2])
    assert judged(second_level, UNDECIDED, LOPSIDED, LOPSIDED, SURE, SURE).path == [0, 2, 4]


def test_the_next_token_is_drawn_from_what_passes():
    drawn = [judged(TokenTree.chain(9), LOPSIDED, seed=seed).token for seed in range(400)]
    assert set(drawn) == {0, 1, 3}
    assert 0.45 < drawn.count(0) / len(drawn) < 0.64  # 0.5 / 0.92
    assert {judged(TokenTree.chain(9), SURE, seed=seed).token for seed in range(50)} == {0}


def test_the_penalty_follows_each_branch():
    """Tokens 0 and 1 rule each other out, until one of them is in the history: on its own branch, and from then on."""
    logits = torch.tensor([[2.0, 1.9, 0.8, -9.0]] * 5)
    sampling = Sampling(temperature=0.2, repetition_penalty=4.0)
    judge = rule(sampling, prompt=(3,))
    verdict = judge(TokenTree([3, 0, 1, 0, 1], [-1, 0, 0, 1, 2]), logits)
    assert (verdict.path, verdict.token) == ([0, 1], 1)
    assert judge(TokenTree.chain(1, [2]), logits[:2]).path == [0, 1]
    assert rule(sampling, prompt=(3,))(TokenTree.chain(3, [2]), logits[:2]).path == [0]


def test_greedy_decoding_is_greedy_whatever_the_rule():
    assert isinstance(acceptance.create(Sampling(), [9], torch.Generator(), "typical"), Greedy)
    assert isinstance(rule(), Typical)


@pytest.mark.parametrize("penalty", [1.0, 1.2])
def test_in_the_loop_every_token_passes_the_test(penalty):
    target = HuggingFaceTarget(tiny_model())
    prompt, sampling = [5, 9, 14, 3], Sampling(max_tokens=30, temperature=0.7, repetition_penalty=penalty, seed=3)
    likely = decoded(target, drafters.create("autoregressive"), "fixed:0", prompt, Sampling(max_tokens=30))
    result = decoded(target, Guesser(likely.token_ids), "fixed:6", prompt, sampling, rule="typical")
    assert len(result.token_ids) == 30
    processor = acceptance.Processor(sampling, prompt, torch.device("cpu"))
    full = [*prompt, *result.token_ids]
    with torch.inference_mode():
        rows = target.unembed(OneSequence(target).prefill(full, (-1,)).hidden[0])
    for position, token in enumerate(result.token_ids, start=len(prompt)):
        p = processor.probabilities(rows[position - 1])
        entropy = -sum(x * math.log(x) for x in p.tolist() if x > 0)
        assert p[token] > min(0.09, 0.3 * math.exp(-entropy))
        processor.extend(token)


def test_a_back_end_tells_whether_it_is_lossy(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    options = {"head": str(tmp_path)}
    assert MedusaSpecDecLLM(str(tmp_path), **options, acceptance="typical").lossy(PLAIN)
    assert not MedusaSpecDecLLM(str(tmp_path), **options, acceptance="typical").lossy(Sampling())
    assert not MedusaSpecDecLLM(str(tmp_path), **options, acceptance="coupled").lossy(PLAIN)
    assert not AutoregressiveLLM(str(tmp_path)).lossy(PLAIN)
