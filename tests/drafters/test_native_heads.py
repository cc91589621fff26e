"""Heads in the native library: what comes of a sequence has the same bits alone and beside others, and drafts in one
call are those that the same head makes level by level."""

from __future__ import annotations

import math
import random

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.eagle.checkpoint import EagleCheckpoint
from ianvs_specdec.drafters.eagle.guesses import Guesses
from ianvs_specdec.drafters.eagle.native import NativeDraft, NativeHead
from ianvs_specdec.drafters.eagle.steps import Level, Pairs
from ianvs_specdec.drafters.eagle.trees import Growth, dynamic, static
from ianvs_specdec.drafters.lockstep import lockstep, only
from ianvs_specdec.engine import Context
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.heads import Limits
from ianvs_specdec.targets.native.target import NativeTarget
from tests.drafters import test_medusa
from tests.drafters.eagle_heads import HEADS, save_heads, wide
from tests.drafters.eagle_oracle import HIDDEN, VOCABULARY

pytestmark = pytest.mark.skipif(library.why_not() is not None, reason=library.why_not() or "")

VARIANTS = library.variants() if library.why_not() is None else (None,)
TARGETS = [
    *((VARIANTS[0], dtype) for dtype in (torch.float32, torch.bfloat16, torch.float16)),
    *((variant, torch.bfloat16) for variant in VARIANTS[1:]),
]
"""Every type of weights, and every instruction set that this processor has."""

CHAIN = tuple((0,) * depth for depth in range(1, 9))


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
def test_a_prompt_in_pieces_and_the_last_pair_asked_again_have_the_same_bits(folder, target, label):
    head = head_of(folder, target, label)
    given = pairs(head, 40, 1)
    at_once, by_and_by = head.open(), head.open()
    (expected,) = head.step([(at_once, given)])
    for start in range(0, 40, 8):
        part = Pairs(given.tokens[start : start + 8], [states[start : start + 8] for states in given.features])
        head.keep(by_and_by, part)
    head.step([(at_once, levels(2)[0])])
    for sequence in (at_once, by_and_by):
        assert torch.equal(head.step([(sequence, Pairs())])[0], expected)


def grown(head, sequence, new, nodes, shape, confidence):
    """The tree that the same head makes level by level."""
    guesses = Guesses(Context([3], 1, 9, Sampling(), torch.Generator()), head, draws=False)
    least = math.log(confidence) if confidence else -math.inf
    growth = Growth(head, sequence, new, guesses, 3, nodes, least)
    return only(lockstep(head, [static(growth, CHAIN[:nodes]) if shape == "chain" else dynamic(growth, 8, 10)]))


@pytest.mark.parametrize("label", HEADS)
@pytest.mark.parametrize("shape", ["chain", "dynamic"])
def test_a_draft_in_one_call_is_the_draft_made_level_by_level(folder, target, label, shape):
    head = head_of(folder, target, label)
    cases = [(nodes, confidence) for nodes in (1, 2, 7, 59) for confidence in (0.0, 1e-4, 0.02, 0.3, 1.0)]
    sequences = [head.open() for _ in cases]
    for step in range(2):
        drafts, expected = [], []
        for number, (sequence, (nodes, confidence)) in enumerate(zip(sequences, cases, strict=True)):
            least = math.log(confidence) if confidence else -math.inf
            new = pairs(head, 5 + number % 3, 10 * number + step)
            drafts.append(NativeDraft(sequence, new, 3, Limits(nodes, 8, 10, least), shape == "dynamic"))
        trees = head.draft(drafts)
        for draft, (nodes, confidence) in zip(drafts, cases, strict=True):
            expected.append(grown(head, draft.sequence, Pairs(), nodes, shape, confidence))
        assert [(tree.tokens, tree.parents) for tree in trees] == [(tree.tokens, tree.parents) for tree in expected]
    assert max(len(tree) for tree in trees) == (9 if shape == "chain" else 60)


def test_what_does_not_fit_is_told_and_the_sequence_stays_as_it_was(folder, target):
    head = head_of(folder, target, "eagle")
    sequence = head.open()
    with pytest.raises(ValueError, match="a tree whose parents"):
        head.step([(sequence, Pairs())])
    (before,) = head.step([(sequence, pairs(head, 3, 0))])
    for wrong in (Pairs([VOCABULARY], [torch.zeros(1, HIDDEN)]), Level(torch.tensor([-1]), 1)):
        with pytest.raises(ValueError, match="not in the vocabulary"):
            head.step([(sequence, wrong)])
    with pytest.raises(ValueError, match="a tree whose parents"):
        head.step([(sequence, Level(torch.tensor([1]), 1, torch.tensor([1])))])
    assert torch.equal(head.step([(sequence, Pairs())])[0], before)


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
