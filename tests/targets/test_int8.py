"""Products in 8-bit integers."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec.engine.memory import tensor_bytes
from ianvs_specdec.targets.int8 import Int8Linear, Int8Module, quantize
from tests.support.tiny import tiny_model

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
    assert tensor_bytes(product) < 1.1 * weight.numel() + 8 * shape[0]


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
