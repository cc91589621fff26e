"""How long an output is at least: tokens that end it are none of its first, or end nothing, whatever is drafted."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import build
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import decode
from ianvs_specdec.engine.acceptance import RULES
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.requests import PROMPTS, target_of_kind
from tests.support.tiny import VOCABULARY, Guesser, tiny_model

TOKENS = 24
PROMPT = PROMPTS[0]
PLAIN = (drafters.create("autoregressive"), lengths.create("fixed:0"))


def free(model):
    return decode(HuggingFaceTarget(model), *PLAIN, PROMPT, Sampling(max_tokens=TOKENS), eos_ids=[]).token_ids


@pytest.mark.parametrize("kind", ["native", "transformers"])
def test_no_end_is_among_the_first_as_with_transformers(kind):
    model = tiny_model()
    target, ends = target_of_kind(kind, model), free(model)[:3]
    asked = {"attention_mask": torch.ones(1, len(PROMPT)), "do_sample": False, "max_new_tokens": TOKENS}
    for least in (0, 1, 7, TOKENS):
        theirs = model.generate(
            torch.tensor([PROMPT]), min_new_tokens=least, eos_token_id=ends, pad_token_id=0, **asked
        )[0, len(PROMPT) :].tolist()
        sampling, known = Sampling(max_tokens=TOKENS, min_tokens=least), {"eos_ids": [-1, VOCABULARY, *ends]}
        assert decode(target, *PLAIN, PROMPT, sampling, **known).token_ids == theirs
        for seed in range(4):
            drafted = decode(target, Guesser(theirs, seed), lengths.create("fixed:9"), PROMPT, sampling, **known)
            assert drafted.token_ids == theirs
            assert any(step.accepted for step in drafted.trace.steps) or least < 2
        assert len(theirs) > least or least == TOKENS


@pytest.mark.parametrize("rule", RULES)
def test_no_sampled_end_is_among_the_first(rule):
    target = HuggingFaceTarget(tiny_model())
    ends = list(range(0, VOCABULARY, 2))
    for seed in range(8):
        sampling = Sampling(max_tokens=TOKENS, min_tokens=9, temperature=1.0, seed=seed)
        plain = decode(target, *PLAIN, PROMPT, sampling, eos_ids=ends, rule=rule)
        guesser = Guesser(plain.token_ids, seed)
        drafted = decode(target, guesser, lengths.create("fixed:9"), PROMPT, sampling, eos_ids=ends, rule=rule)
        for output in (plain.token_ids, drafted.token_ids):
            assert not set(output[:9]) & set(ends)
            assert output[-1] in ends or len(output) == TOKENS
        assert rule != "coupled" or drafted.token_ids == plain.token_ids


def test_ignored_ends_end_nothing():
    model = tiny_model()
    target, whole = HuggingFaceTarget(model), free(model)
    for seed in range(4):
        sampling = Sampling(max_tokens=TOKENS, min_tokens=seed * 5, ignore_eos=True)
        result = decode(target, Guesser(whole, seed), lengths.create("fixed:9"), PROMPT, sampling, eos_ids=whole[:5])
        assert (result.token_ids, result.finish_reason) == (whole, "length")


@pytest.mark.parametrize("least", [-1, 9])
def test_a_least_length_is_at_most_the_limit(least):
    with pytest.raises(UserError, match=r"^min_tokens must be ") as caught:
        build(Sampling, {"max_tokens": 8, "min_tokens": least})
    assert caught.value.key == "min_tokens"
