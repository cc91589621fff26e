"""What rounding may change, and that it is told: close logits by dtype, integers whose sums overflow, kernels that are
compiled while the clock runs."""

from __future__ import annotations

import os
import subprocess
import sys
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


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.5])
def test_on_the_reference_target_as_well(dtype, temperature, shared):
    from transformers import AutoModelForCausalLM

    loaded = torch.float32 if dtype == "int8" else getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(shared / "reference" / "target", dtype=loaded)
    target = torch_target(model, quantization="int8" if dtype == "int8" else None)
    sampling = Sampling(max_tokens=48, temperature=temperature, seed=3)
    found = differing(target, prompts(40), sampling, "coupled" if temperature else "rejection")
    if not found:
        pytest.skip("no output differs on this processor")
    assert all(first in near for first, near in found)


def in_a_process(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


INT8 = """
import torch
from ianvs_specdec.targets.int8 import Int8Linear
generator = torch.Generator().manual_seed(0)
for shape in ((48, 64), (1100, 1024)):
    weight = torch.rand(shape, generator=generator) + 0.5
    for sign in (1, -1):
        x = sign * (torch.rand(4, shape[1], generator=generator) + 0.5)
        expected = x @ weight.T
        print(float((Int8Linear(weight)(x) - expected).norm() / expected.norm()))
"""


@pytest.mark.parametrize("isa", ["ALL", pytest.param("AVX2", marks=pytest.mark.slow)])
def test_sums_of_large_integers_do_not_overflow_whatever_the_processor(isa):
    errors = [float(line) for line in in_a_process(INT8, ONEDNN_MAX_CPU_ISA=isa).split()]
    assert len(errors) == 4
    assert max(errors) < 0.005


COMPILED = """
import torch
from tests.support.targets import OneSequence
from tests.support.tiny import tiny_model
from tests.support.torch_path import torch_target
for dtype in (torch.float32, torch.bfloat16):
    target = torch_target(tiny_model().to(dtype))
    sequence = OneSequence(target)
    sequence.prefill([3] * 20)
    for tokens in (33, 34):
        if tokens == 34:
            target.warm_up(tokens)
        print("MARK", flush=True)
        sequence.prefill([3] * tokens)
    print("MARK", flush=True)
"""


@pytest.fixture(scope="module")
def compiled():
    """For each dtype what is compiled for a prompt of 33 tokens, and for one of 34 that was announced."""
    output = in_a_process(COMPILED, ONEDNN_VERBOSE="2").split("MARK")
    misses = [[line for line in part.splitlines() if "cache_miss" in line] for part in output]
    return {"float32": misses[1:3], "bfloat16": misses[4:6]}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_compiled_for_a_new_length_of_prompt_is_compiled_before_the_clock_runs(dtype, compiled):
    cold, warm = compiled[dtype]
    if not any("mb33" in line for line in cold):
        pytest.skip("this processor has nothing to compile")
    assert not any("mb34" in line for line in warm)
