"""Products in 8-bit integers, and what rounding may change of an output."""

from __future__ import annotations

from itertools import repeat

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.memory import held
from ianvs_specdec.targets.int8 import Int8Linear, Int8Module, quantize
from tests.support.requests import engine_of, request_of, results
from tests.support.tiny import Guesser, tiny_model
from tests.support.torch_path import torch_target

SMALL, LARGE = (48, 64), (1100, 1024)


def weights(shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator), torch.randn(shape[0], generator=generator)


@pytest.mark.parametrize("shape", [SMALL, LARGE])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_product_is_close_and_its_dtype_that_of_the_input(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight, bias = weights(shape)
    x = torch.randn(5, shape[1], generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = torch.nn.functional.linear(x.float(), weight, bias)
    product = Int8Linear(weight, bias)
    got = product(x)
    assert got.dtype == dtype
    assert (got - expected).norm() < 0.02 * expected.norm()
    residual = torch.ones_like(got)
    assert (product.added(x, residual) - 1 - expected).norm() < 0.02 * expected.norm()
    assert held(product) < 1.1 * weight.numel() + 8 * shape[0]
    # Sums of products of one sign are the largest, which must not overflow.
    alike = torch.nn.functional.linear(x.float().abs(), weight.abs())
    assert (Int8Linear(weight.abs())(x.abs()) - alike).norm() < 0.02 * alike.norm()


@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_a_row_does_not_depend_on_the_rows_beside_it(shape: tuple[int, int]) -> None:
    product = Int8Linear(*weights(shape))
    x = torch.randn(9, shape[1], generator=torch.Generator().manual_seed(2)) * torch.logspace(-3, 3, 9)[:, None]
    together = product(x)
    assert all(torch.equal(product(x[i : i + 1])[0], together[i]) for i in range(9))


def test_a_model_is_quantized_in_place() -> None:
    model = tiny_model("llama")
    before = model(torch.tensor([[1, 2, 3]])).logits
    linears = sum(type(module) is torch.nn.Linear for module in model.modules())
    quantize(model)
    assert sum(isinstance(module, Int8Module) for module in model.modules()) == linears > 0
    assert not any(type(module) is torch.nn.Linear for module in model.modules())
    after = model(torch.tensor([[1, 2, 3]])).logits
    assert 0 < (after - before).norm() < 0.1 * before.norm()


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
