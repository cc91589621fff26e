"""Products of the native step: bits that do not depend on the batch or the threads, for every kind and instruction set."""

import ctypes
import functools
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch

CSRC = Path(__file__).parents[3] / "src/ianvs_specdec/decoding/native/csrc"
API = Path(__file__).with_name("products_api.cpp")
KINDS = {"f32": 0, "bf16": 1, "f16": 2, "int8": 3, "int4": 4}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
AVX512 = ["-march=x86-64-v4"]
BF16 = [*AVX512, "-mavx512vnni", "-mavx512bf16"]
VARIANTS = {
    "generic": ([], set()),
    "avx2": (["-mavx2", "-mfma", "-mf16c"], {"avx2", "fma", "f16c"}),
    "avx512": (AVX512, {"avx512f", "avx512bw", "avx512vl", "avx512dq"}),
    "avx512bf16": (BF16, {"avx512_vnni", "avx512_bf16"}),
    "amx": ([*BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"], {"amx_tile", "amx_bf16", "amx_int8"}),
}
# Sizes that are multiples of nothing, and the smallest.
SHAPES = [(1, 1), (70, 45), (64, 256), (131, 333)]
ROWS = 67

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


class Product:
    """One weight in one variant's library; ``weight [out, in]`` of a type that it can come in."""

    def __init__(self, variant, kind, weight, bias=None):
        self._library = library(variant)
        source = next(name for name, dtype in DTYPES.items() if dtype == weight.dtype)
        weight = weight.contiguous()
        at = None if bias is None else ctypes.c_void_p(bias.data_ptr())
        self.out, self.inputs = weight.shape
        self._product = ctypes.c_void_p(
            self._library.make(
                KINDS[kind], KINDS[source], ctypes.c_void_p(weight.data_ptr()), *map(ctypes.c_int64, weight.shape), at
            )
        )

    def __call__(self, x, y=None, threads=1):
        add = y is not None
        y = torch.full((len(x), self.out), torch.nan) if y is None else y.clone()
        buffer = np.zeros(self._library.scratch(self._product, ctypes.c_int64(len(x))) + 64, np.uint8)
        at = ctypes.c_void_p(-(-buffer.ctypes.data // 64) * 64)
        rows = ctypes.c_int64(len(x))
        stride = ctypes.c_int64(x.stride(0)), ctypes.c_int64(y.stride(0))
        for thread in range(threads):
            self._library.prepare(self._product, ctypes.c_void_p(x.data_ptr()), stride[0], rows, at, thread, threads)
        for thread in range(threads):
            self._library.run(
                self._product, at, rows, ctypes.c_void_p(y.data_ptr()), stride[1], int(add), thread, threads
            )
        return y

    def __del__(self):
        self._library.drop(self._product)


@functools.cache
def library(variant):
    flags, needed = VARIANTS[variant]
    words = Path("/proc/cpuinfo").read_text().split() if needed else []
    if not needed <= set(words):
        pytest.skip(f"this processor has no {variant}")
    sources = sorted(CSRC.glob("products*")) + [API]
    state = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    built = Path(tempfile.gettempdir(), f"specdec-products-{variant}-{state}.so")
    if not built.exists():
        part = built.with_suffix(f".{id(flags)}")
        command = ["g++", "-std=c++17", "-O3", "-ffp-contract=off", "-shared", "-fPIC", f"-DSPECDEC_VARIANT={variant}"]
        subprocess.run([*command, *flags, f"-I{CSRC}", str(API), "-o", str(part)], check=True)
        part.rename(built)
    opened = ctypes.CDLL(str(built))
    opened.make.restype = ctypes.c_void_p
    opened.held.restype = opened.scratch.restype = ctypes.c_int64
    return opened


def sample(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


cases = pytest.mark.parametrize(("variant", "kind"), [(variant, kind) for variant in VARIANTS for kind in KINDS])


@cases
def test_a_row_has_the_same_bits_in_every_batch_and_with_every_number_of_threads(variant, kind):
    for out, inputs in SHAPES:
        product = Product(variant, kind, sample(out, inputs), sample(out, seed=1))
        x, y = sample(ROWS, inputs, seed=2), sample(ROWS, out, seed=3)
        alone = torch.cat([product(x[row : row + 1], y[row : row + 1]) for row in range(ROWS)])
        for count in [*range(2, 34), ROWS]:
            for start in {0, 5, ROWS - count}:
                if start + count <= ROWS:
                    rows = slice(start, start + count)
                    assert torch.equal(product(x[rows], y[rows]), alone[rows])
        for threads in (2, 3):
            assert torch.equal(product(x, y, threads), alone)


# The largest error, in units of the norms of a row and a weight: what the rounding of the kind lets expect.
ERRORS = {"f32": 1e-6, "bf16": 1e-6, "f16": 1e-6, "int8": 0.004, "int4": 0.05}


@cases
def test_products_are_right(variant, kind):
    source = DTYPES.get(kind, torch.float32)
    for out, inputs in SHAPES[1:]:
        weight, bias = sample(out, inputs, dtype=source), sample(out, seed=1)
        x = sample(ROWS, inputs, seed=2)
        right = x.double() @ weight.double().T + bias.double()
        unit = x.norm(dim=1)[:, None] * weight.float().norm(dim=1)
        assert ((Product(variant, kind, weight, bias)(x) - right).abs() / unit).max() < ERRORS[kind]
        added = Product(variant, kind, weight)(x, y=sample(ROWS, out, seed=3))
        right += sample(ROWS, out, seed=3) - bias
        assert ((added - right).abs() / unit).max() < ERRORS[kind]
