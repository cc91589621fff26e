"""The distribution a token is drawn from is the one that transformers' own processors make."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec.common.types import Sampling
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


def test_greedy_scores_carry_the_penalty():
    logits = torch.tensor([2.0, 1.9, -1.0, 0.5])
    sampling = Sampling(repetition_penalty=1.5)
    processor = Processor(sampling, [0], torch.device("cpu"))
    processor.extend(2)
    torch.testing.assert_close(processor.scores(logits), by_transformers(sampling, [0, 2], logits))
    assert int(processor.scores(logits).argmax()) == 1


def test_top_p_keeps_no_more_than_what_reaches_it():
    """Four tokens of a quarter each: two of them are a half."""
    assert int(top_p_filter(torch.zeros(4), 0.5).isfinite().sum()) == 2
    assert int(top_p_filter(torch.zeros(4), 0.51).isfinite().sum()) == 3
    assert int(top_p_filter(torch.zeros(4), 0.0).isfinite().sum()) == 1
