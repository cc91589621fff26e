"""What rounding may change, and that it is told: close logits by dtype, integers whose sums overflow, kernels that are
compiled while the clock runs."""

from __future__ import annotations

from itertools import repeat

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from tests.support.requests import engine_of, request_of, results
from tests.support.tiny import Guesser, tiny_model
from tests.support.torch_path import torch_target

ALONE = drafters.create("autoregressive")


def differing(target, prompts, sampling, rule="rejection"):
    """For each prompt whose output changes with drafts: the first position that differs, and the near ties told."""

    def outputs(length, drafts):
        requests = [request_of(target, *each, rule=rule) for each in zip(prompts, repeat(sampling), drafts)]
        return results(engine_of(target, length), *requests)

    plain = outputs("fixed:0", repeat(ALONE))
    drafted = outputs("fixed:7", [Guesser(result.token_ids) for result in plain])
    found = []
    for ours, theirs in zip(plain, drafted, strict=True):
        pairs = enumerate(zip(ours.token_ids, theirs.token_ids, strict=True))
        first = next((position for position, (one, other) in pairs if one != other), None)
        if first is not None:
            found.append((first, {position for position, _ in (*ours.trace.near_ties, *theirs.trace.near_ties)}))
    return found


def prompts(count, length=12):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(3, 60, (count, length), generator=generator).tolist()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, "int8"])
@pytest.mark.parametrize("temperature", [0.0, 2.5])
def test_where_drafts_change_an_output_two_tokens_were_close(dtype, temperature):
    differences = []
    for seed, family in enumerate(("llama", "gpt2")):
        model = tiny_model(family, seed, initializer_range=0.1)
        model = model if dtype == "int8" else model.to(dtype)
        sampling = Sampling(max_tokens=24, temperature=temperature, seed=seed)
        rule = "coupled" if temperature else "rejection"
        differences += differing(
            torch_target(model, quantization="int8" if dtype == "int8" else None), prompts(4), sampling, rule
        )
    assert all(first in near for first, near in differences)
