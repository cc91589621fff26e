"""Sampling equals transformers' processors; typical acceptance by hand."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec.backends.specdec import MedusaSpecDecLLM
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree, acceptance
from ianvs_specdec.engine.sampling import Processor, top_p_filter

SETTINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.3),
    Sampling(temperature=1.7, top_k=5),
    Sampling(temperature=0.8, top_p=0.7),
    Sampling(temperature=1.0, top_k=1000),
    Sampling(temperature=1.2, top_k=12, top_p=0.85, repetition_penalty=1.4),
    Sampling(temperature=1.0, top_p=0.05, repetition_penalty=0.7),
]


def by_transformers(sampling, history, logits):
    from transformers.generation import logits_process as hf

    processors = hf.LogitsProcessorList()
    if sampling.repetition_penalty != 1:
        processors.append(hf.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.temperature not in (0, 1):
        processors.append(hf.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        processors.append(hf.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        processors.append(hf.TopPLogitsWarper(sampling.top_p))
    return processors(torch.tensor([history]), logits.float()[None])[0]


@pytest.mark.parametrize("sampling", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_equal_those_of_transformers(sampling, dtype):
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        # Rounded logits tie often, so that the treatment of ties is compared too.
        logits = (torch.randn(64, generator=generator) * 4).round().mul(0.5).to(dtype)
        history = torch.randint(0, 64, (10,), generator=generator).tolist()
        processor = Processor(sampling, history[:6], torch.device("cpu"))
        for token in history[6:]:
            processor.extend(token)
        expected = by_transformers(sampling, history, logits).softmax(-1)
        torch.testing.assert_close(processor.probabilities(logits), expected, rtol=0, atol=1e-7)


def test_top_p_keeps_the_smallest_set():
    """Four tokens of probability 1/4: two of them are a half."""
    assert int(top_p_filter(torch.zeros(4), 0.5).isfinite().sum()) == 2
    assert int(top_p_filter(torch.zeros(4), 0.51).isfinite().sum()) == 3
    assert int(top_p_filter(torch.zeros(4), 0.0).isfinite().sum()) == 1


PLAIN = Sampling(temperature=1.0)
SURE = [0.88, 0.06, 0.03, 0.03]  # entropy 0.49, so the ceiling 0.09 is the threshold
UNDECIDED = [0.28, 0.26, 0.24, 0.22]  # entropy 1.38, threshold 0.0752: all pass
LOPSIDED = [0.5, 0.3, 0.08, 0.12]  # entropy 1.16, threshold 0.09


def rule(sampling=PLAIN, prompt=(9,), seed=0):
    return acceptance.create(sampling, prompt, torch.Generator().manual_seed(seed), "typical")


def judged(tree, *distributions, sampling=PLAIN, prompt=(9,), seed=0):
    return rule(sampling, prompt, seed)(tree, torch.tensor(distributions).log())


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


def test_the_next_token_is_drawn_from_typical_ones():
    drawn = [judged(TokenTree.chain(9), LOPSIDED, seed=seed).token for seed in range(400)]
    assert set(drawn) == {0, 1, 3}
    assert 0.45 < drawn.count(0) / len(drawn) < 0.64  # 0.5 / 0.92
    assert {judged(TokenTree.chain(9), SURE, seed=seed).token for seed in range(50)} == {0}


def test_the_penalty_follows_each_branch():
    """Tokens 0 and 1 exclude each other until one of them is in the history of a branch."""
    logits = torch.tensor([[2.0, 1.9, 0.8, -9.0]] * 5)
    sampling = Sampling(temperature=0.2, repetition_penalty=4.0)
    judge = rule(sampling, prompt=(3,))
    verdict = judge(TokenTree([3, 0, 1, 0, 1], [-1, 0, 0, 1, 2]), logits)
    assert (verdict.path, verdict.token) == ([0, 1], 1)
    assert judge(TokenTree.chain(1, [2]), logits[:2]).path == [0, 1]
    assert rule(sampling, prompt=(3,))(TokenTree.chain(3, [2]), logits[:2]).path == [0]


def test_back_ends_report_whether_they_are_lossy(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    typical, coupled = (
        MedusaSpecDecLLM(str(tmp_path), head=str(tmp_path), acceptance=rule) for rule in ("typical", "coupled")
    )
    assert (typical.lossy(PLAIN), typical.lossy(Sampling()), coupled.lossy(PLAIN)) == (True, False, False)
