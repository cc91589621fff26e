"""Products of the native step: bits that depend neither on the batch nor on threads, for every instruction set."""

from __future__ import annotations

import multiprocessing
import threading

import pytest
import torch
from torch import Tensor

from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.interface import check
from ianvs_specdec.targets.native.product import Product

# Type of the weight, and what it is rounded to.
KINDS = {
    "f32": (torch.float32, None),
    "bf16": (torch.bfloat16, None),
    "f16": (torch.float16, None),
    "int8": (torch.float32, "int8"),
    "int4": (torch.float32, "int4"),
}
# Odd sizes, the smallest, and one that uses several threads.
SHAPES = [(1, 1), (70, 45), (64, 256), (131, 333), (640, 256)]
ROWS = 67
# Numbers of rows: every size of a block, and several blocks; a tile has 8 rows, two of them 16.
COUNTS = [*range(2, 18), 31, 32, 33, ROWS]
# Relative rounding error of a product of two numbers.
ERRORS = {"f32": 1e-6, "bf16": 1e-6, "f16": 1e-6, "int8": 0.01, "int4": 0.09}
# With bfloat16 activations are rounded too: to 8 bits, or to 16 in two parts.
ROUNDED = {("avx512bf16", "bf16"): 2**-9, ("amx", "bf16"): 2**-17}
DEVIATIONS = 5
"""Maximum error of a sum of independent errors, in standard deviations."""

VARIANTS = library.variants() if library.unavailable_reason() is None else ("generic",)
cases = pytest.mark.parametrize(("variant", "kind"), [(variant, kind) for variant in VARIANTS for kind in KINDS])


def sample(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(variant: str, kind: str, weight: Tensor, bias: Tensor | None = None) -> Product:
    dtype, quantization = KINDS[kind]
    return Product(library.load(variant), weight.to(dtype), bias, quantization)


def run(variant: str, product: Product, x: Tensor, y: Tensor | None = None, threads: int = 1) -> Tensor:
    """The product of ``x``, added to ``y`` if given; neither need be contiguous."""
    add = y is not None
    to = torch.full((len(x), product.out + 3), torch.nan)
    if add:
        to[:, : product.out] = y
    call = library.load(variant).specdec_product_run
    strides = x.stride(0), to.stride(0)
    check(call(product.pointer, x.data_ptr(), strides[0], len(x), to.data_ptr(), strides[1], int(add), threads))
    assert to[:, product.out :].isnan().all()  # nothing is written outside the outputs
    return to[:, : product.out]


@cases
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_do_not_depend_on_batch_or_threads(variant, kind, shape):
    out, inputs = shape
    fixed = product(variant, kind, sample(out, inputs), sample(out, seed=1))
    x, y = sample(ROWS, inputs + 5, seed=2)[:, :inputs], sample(ROWS, out, seed=3)
    alone = torch.cat([run(variant, fixed, x[row : row + 1], y[row : row + 1]) for row in range(ROWS)])
    for count in COUNTS:
        for start in {0, min(5, ROWS - count), ROWS - count}:
            rows = slice(start, start + count)
            assert torch.equal(run(variant, fixed, x[rows], y[rows]), alone[rows])
    for threads in (2, 3):
        assert torch.equal(run(variant, fixed, x, y, threads), alone)


@cases
@pytest.mark.parametrize("shape", SHAPES[1:])
def test_products_are_accurate(variant, kind, shape):
    out, inputs = shape
    weight, bias, x = sample(out, inputs).to(KINDS[kind][0]), sample(out, seed=1), sample(ROWS, inputs, seed=2)
    unit = x.norm(dim=1)[:, None] * weight.float().norm(dim=1)
    error = ROUNDED.get((variant, kind), ERRORS[kind]) * DEVIATIONS / inputs**0.5
    for y in (None, sample(ROWS, out, seed=3)):
        right = x.double() @ weight.double().T + bias.double() + (0 if y is None else y)
        assert ((run(variant, product(variant, kind, weight, bias), x, y) - right).abs() / unit).max() < error


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_extreme_integers_do_not_overflow(variant, kind):
    """A processor that adds products in 16 bits would lose the largest of them."""
    for sign in (1.0, -1.0):
        weight, x = torch.full((64, 256), sign), torch.full((17, 256), 3.0)
        assert torch.allclose(
            run(variant, product(variant, kind, weight), x), torch.full((17, 64), sign * 768), rtol=0.01
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_zero_and_tiny_weights_stay_finite(variant):
    x = sample(3, 64)
    for kind in KINDS:
        for size in (0.0, 1e-38):
            assert run(variant, product(variant, kind, torch.full((5, 64), size)), x).abs().max() < 1e-30
        assert run(variant, product(variant, kind, sample(5, 64)), torch.zeros(3, 64)).abs().max() == 0


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_integer_products_agree_between_variants(kind):
    """Integers and their order are the same everywhere; without fused multiply-adds the last bits differ."""
    weight, x = sample(131, 333), sample(9, 333, seed=2)
    fused = [variant for variant in library.variants() if variant != "generic"]
    results = [run(variant, product(variant, kind, weight), x) for variant in fused]
    assert all(torch.equal(result, results[0]) for result in results)


HIDDEN, QUERIES, KEYS, WIDTH, INNER, VOCABULARY = 48, 4, 2, 12, 80, 30


def rows(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, HIDDEN, generator=torch.Generator().manual_seed(seed))


def large() -> tuple[Product, torch.Tensor]:
    """A product that is shared out to threads."""
    generator = torch.Generator().manual_seed(3)
    product = Product(library.load(), torch.randn(1024, 512, generator=generator))
    return product, torch.randn(16, 512, generator=generator)


@pytest.mark.usefixtures("two_threads")
def test_concurrent_calls() -> None:
    product, x = large()
    wanted, wrong = product(x), []

    def repeat() -> None:
        wrong.extend(None for _ in range(40) if not torch.equal(product(x), wanted))

    callers = [threading.Thread(target=repeat) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong


def _in_child(product: Product, x: torch.Tensor, wanted: torch.Tensor) -> None:
    raise SystemExit(0 if torch.equal(product(x), wanted) else 1)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_its_own_threads() -> None:
    product, x = large()
    wanted = product(x)
    child = multiprocessing.get_context("fork").Process(target=_in_child, args=(product, x, wanted))
    child.start()
    child.join(60)
    assert child.exitcode == 0
