"""Heads in the native library: logits and drafts of a sequence have the same bits alone and beside others."""

from __future__ import annotations

import math
import random

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint
from ianvs_specdec.drafters.eagle.native import NativeDraft, NativeHead
from ianvs_specdec.drafters.eagle.steps import Level, Pairs
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.heads import Limits
from ianvs_specdec.targets.native.target import NativeTarget
from tests.drafters import test_medusa
from tests.drafters.eagle_oracle import HIDDEN, VOCABULARY, save_heads, wide

pytestmark = pytest.mark.skipif(library.unavailable_reason() is not None, reason=library.unavailable_reason() or "")

VARIANTS = library.variants() if library.unavailable_reason() is None else (None,)
TARGETS = [
    *((VARIANTS[0], dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
    *((variant, torch.bfloat16) for variant in VARIANTS[1:]),
]
"""Every type of weights, and every instruction set that this processor has."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_heads(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module", params=TARGETS, ids=str)
def target(request):
    variant, dtype = request.param
    return NativeTarget(wide().to(dtype), variant=variant)


@pytest.fixture
def threads():
    """As many as asked for, until the test ends."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def head_of(folder, target, label):
    return NativeHead(EagleCheckpoint.read(folder / label), target)


def pairs(head, count, seed):
    """That many pairs of tokens and features."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (count,), generator=generator).tolist()
    return Pairs(tokens, [torch.randn(count + 3, HIDDEN, generator=generator) for _ in head.features])


def levels(seed, count=4):
    """Levels of a tree of any shape."""
    rng, above, grown = random.Random(seed), 1, []
    for depth in range(1, count + 1):
        rows = rng.randint(1, 6)
        tokens = torch.tensor([rng.randrange(VOCABULARY) for _ in range(rows)])
        grown.append(Level(tokens, depth, torch.tensor([rng.randrange(above) for _ in range(rows)])))
        above = rows
    return grown


def logits_of(head, seeds):
    """The logits of everything that sequences with these seeds ask for, all in the same steps."""
    sequences = [head.open() for _ in seeds]
    said = [[] for _ in seeds]
    prompts = [pairs(head, 1 + 9 * (seed % 4), seed) for seed in seeds]
    further = [pairs(head, 1 + seed % 3, seed + 100) for seed in seeds]
    for part in (prompts, *zip(*map(levels, seeds), strict=True), further, *zip(*map(levels, seeds), strict=True)):
        for own, logits in zip(said, head.step(list(zip(sequences, part, strict=True))), strict=True):
            own.append(logits.clone())
    for sequence in sequences:
        sequence.close()
    return said


@pytest.mark.parametrize("label", ["eagle-biased", "eagle3"])
def test_logits_have_the_same_bits_alone_and_beside_others(folder, target, threads, label):
    head = head_of(folder, target, label)
    together = logits_of(head, range(6))
    threads(2)
    beside = logits_of(head, [5, 3, 1])
    threads(1)
    for seed in range(6):
        (alone,) = logits_of(head, [seed])
        others = [together[seed], *([beside[[5, 3, 1].index(seed)]] if seed % 2 else [])]
        assert all(torch.equal(a, b) for other in others for a, b in zip(alone, other, strict=True))


@pytest.mark.parametrize("label", ["eagle", "eagle3"])
@pytest.mark.parametrize("shape", ["chain", "dynamic"])
def test_drafts_in_one_call_are_those_of_each_alone(folder, target, label, shape):
    head = head_of(folder, target, label)

    def drafted(seeds):
        limits = [Limits(7 + 5 * seed, 8, 10, -math.inf) for seed in seeds]
        new = [pairs(head, 5 + seed % 3, seed) for seed in seeds]
        drafts = [
            NativeDraft(head.open(), *each, shape == "dynamic")
            for each in zip(new, [3] * len(new), limits, strict=True)
        ]
        return [(tree.tokens, tree.parents) for tree in head.draft(drafts)]

    assert drafted(range(6)) == [drafted([seed])[0] for seed in range(6)]


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_medusas_heads_say_the_same_alone_and_beside_others(tmp_path, target, layers):
    tensors = test_medusa.random_heads(heads=3, layers=layers, vocabulary=VOCABULARY)
    test_medusa.save(tmp_path, tensors, medusa_num_heads=3, medusa_num_layers=layers)
    medusa = drafters.create("medusa", {"head": tmp_path})
    medusa.prepare(target)
    hidden = torch.randn(7, HIDDEN, generator=torch.Generator().manual_seed(1))
    together = medusa._heads(hidden, 3)
    values, tokens = medusa._heads.likeliest(together, 4)
    expected = together.log_softmax(dim=-1).topk(4, dim=-1)
    torch.testing.assert_close(values, expected.values)
    assert torch.equal(tokens, expected.indices)
    for row in range(7):
        assert torch.equal(medusa._heads(hidden[row : row + 1], 3)[0], together[row])
        assert torch.equal(medusa._heads(hidden[row : row + 1], 2)[0], together[row, :2])
    if target.dtype == torch.float32:
        x = hidden
        for layer in range(layers):
            inner = x @ tensors[f"2.{layer}.linear.weight"].T + tensors[f"2.{layer}.linear.bias"]
            x = x + inner * torch.sigmoid(inner)
        torch.testing.assert_close(together[:, 2], x @ tensors[f"2.{layers}.weight"].T, atol=1e-5, rtol=1e-4)
