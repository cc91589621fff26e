"""Bit invariance: a row equals that of its path decoded alone, token by token, whatever else is computed."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from ianvs_specdec.engine import TokenTree
from ianvs_specdec.engine.contracts import Output, PromptChunk
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.build import X86_VARIANTS
from ianvs_specdec.targets.native.target import NativeSequence, NativeTarget
from tests.support.families import FAMILIES, family_model
from tests.support.slow_cases import slow_unless
from tests.support.tiny import VOCABULARY, random_tree, tiny_model

PLAIN = ("llama", "qwen2", "qwen3")
LONGROPE = "phi3-longrope family"
DIFFERENT = ("llama", "gemma2 family", "qwen3-moe family")
"""Together they cover all features of a layer."""
KINDS = {
    "float32": (torch.float32, None),
    "bfloat16": (torch.bfloat16, None),
    "float16": (torch.float16, None),
    "int8": (torch.bfloat16, "int8"),
    "int4": (torch.bfloat16, "int4"),
}
FEATURES = (1, -1)
ODD = {"hidden_size": 88, "intermediate_size": 150, "num_attention_heads": 4, "num_key_value_heads": 2}
"""Sizes that are no multiples of a vector; two query heads share their keys."""


def made(name: str, kind: str, variant: str | None = None, **overrides: int) -> NativeTarget:
    dtype, quantization = KINDS[kind]
    if name in PLAIN:
        sizes = {**ODD, **({"head_dim": 22} if name == "qwen3" else {}), **overrides}
        model = tiny_model(name, initializer_range=0.1, **sizes).to(dtype)
    else:
        model = family_model(name.removesuffix(" family"), **overrides).to(dtype)
    return NativeTarget(model, quantization=quantization, variant=variant)


class Alone:
    """Decodes token by token, one sequence at a time, on one thread."""

    def __init__(self, target: NativeTarget) -> None:
        self._target = target
        self._sequence = target.open(FEATURES)

    def keep(self, tokens: list[int]) -> list[Output]:
        return [self._next(token) for token in tokens]

    def after(self, tokens: list[int]) -> Output:
        """Output of the last of ``tokens``; the sequence is restored."""
        start = self._sequence.snapshot()
        *_, output = (self._next(token) for token in tokens)
        self._sequence.restore(start)
        return output

    def _next(self, token: int) -> Output:
        (output,) = self._target.step([(self._sequence, TokenTree.chain(token))])
        self._sequence.commit([0])
        return output


def assert_row(output: Output, row: int, alone: Output, *, logits_row: int | None = None) -> None:
    """Compare all bits of one row. ``logits_row``: the row of its logits, if different."""
    assert torch.equal(output.logits[row if logits_row is None else logits_row], alone.logits[0])
    for got, wanted in zip(output.hidden, alone.hidden, strict=True):
        assert torch.equal(got[row], wanted[0])


def assert_tree(tree: TokenTree, output: Output, alone: Alone) -> None:
    for node in range(len(tree)):
        assert_row(output, node, alone.after([tree.tokens[i] for i in tree.path_to(node)]))


MODELS = [*PLAIN, *(f"{name} family" for name in FAMILIES)]


@pytest.mark.parametrize(
    ("name", "kind"),
    slow_unless(
        itertools.product(MODELS, KINDS), lambda case: case[0] in (*DIFFERENT, LONGROPE) or case[1] == "float32"
    ),
)
def test_prompts_pieces_chains_trees_and_batches(name: str, kind: str) -> None:
    rng, target = random.Random(3), made(name, kind)
    prompt = [rng.randrange(3, VOCABULARY) for _ in range(75)]
    alone = Alone(target)
    kept = alone.keep(prompt)
    whole, pieces, other = (target.open(FEATURES) for _ in range(3))
    (at_once,) = target.step([(whole, PromptChunk(prompt))])
    (first,) = target.step([(pieces, PromptChunk(prompt[:31], last=False))])
    second, _ = target.step([(pieces, PromptChunk(prompt[31:])), (other, PromptChunk(prompt[5:9]))])
    assert first.logits.shape == (0, VOCABULARY)
    for output, begin in ((at_once, 0), (second, 31)):
        # Skip rows whose rotations depend on the length of the piece.
        for row in range(target.switch_length or 0, len(prompt) - begin):
            last = begin + row == len(prompt) - 1
            for got, wanted in zip(output.hidden, kept[begin + row].hidden, strict=True):
                assert torch.equal(got[row], wanted[0])
            if last:
                assert_row(output, row, kept[-1], logits_row=0)
    for tree in (TokenTree.chain(7, range(8, 21)), random_tree(rng, 24)):
        got, _, again = target.step([(whole, tree), (other, random_tree(rng, 5)), (pieces, tree)])
        assert torch.equal(got.logits, again.logits)
        assert_tree(tree, got, alone)
        path = tree.path_to(rng.randrange(len(tree)))
        alone.keep([tree.tokens[node] for node in path])
        whole.commit(path)
        pieces.commit(path)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DIFFERENT)
def test_two_threads_equal_one(name: str, kind: str) -> None:
    # Large enough for several threads.
    target = made(name, kind, hidden_size=256, intermediate_size=512, num_hidden_layers=4)
    prompt, tree = list(range(3, 60)), random_tree(random.Random(1), 13)
    outputs: dict[int, list[Output]] = {1: [], 2: []}
    for threads in outputs:
        torch.set_num_threads(threads)
        first, second = target.open(FEATURES), target.open(FEATURES)
        outputs[threads] += target.step([(first, PromptChunk(prompt)), (second, PromptChunk(prompt[3:]))])
        outputs[threads] += target.step([(first, tree), (second, TokenTree.chain(5))])
    for one, two in zip(outputs[1], outputs[2], strict=True):
        assert torch.equal(one.logits, two.logits)
        assert all(torch.equal(a, b) for a, b in zip(one.hidden, two.hidden, strict=True))


class Live:
    """A sequence of a changing batch, and the same sequence decoded alone."""

    def __init__(self, target: NativeTarget, rng: random.Random) -> None:
        self.sequence: NativeSequence = target.open(FEATURES)
        self.alone = Alone(target)
        self._rng = rng
        self._prompt = [rng.randrange(3, VOCABULARY) for _ in range(rng.randrange(1, 40))]
        self._tree = TokenTree.chain(0)
        self._piece: list[int] = []

    def piece(self) -> PromptChunk | TokenTree:
        if self._prompt:
            size = self._rng.randrange(1, len(self._prompt) + 1)
            self._piece, self._prompt = self._prompt[:size], self._prompt[size:]
            return PromptChunk(self._piece, last=not self._prompt)
        nodes = self._rng.choice((1, 1, 2, 5, 9, 16))
        chain = TokenTree.chain(5, [self._rng.randrange(3, VOCABULARY) for _ in range(nodes - 1)])
        self._tree = self._rng.choice((chain, random_tree(self._rng, nodes)))
        return self._tree

    def check(self, output: Output) -> None:
        if self._piece:
            (*_, last) = self.alone.keep(self._piece)
            self._piece = []
            if len(output.logits):
                assert_row(output, -1, last)
            return
        assert_tree(self._tree, output, self.alone)
        path = self._tree.path_to(self._rng.randrange(len(self._tree)))
        self.sequence.commit(path)
        self.alone.keep([self._tree.tokens[node] for node in path])


@pytest.mark.parametrize("kind", KINDS)
def test_random_batches_with_joining_and_leaving_sequences(kind: str) -> None:
    join_and_leave(made("qwen3", kind), 200 // len(KINDS))


@pytest.mark.slow
@pytest.mark.usefixtures("_every_variant")
@pytest.mark.parametrize("variant", X86_VARIANTS)
def test_every_variant_is_invariant(variant: str) -> None:
    if variant not in library.variants()[1:]:
        pytest.skip(f"this processor or compiler has no {variant}, or it is tested above")
    for name, kind in itertools.product(DIFFERENT, KINDS):
        join_and_leave(made(name, kind, variant), 8)


def join_and_leave(target: NativeTarget, batches: int) -> None:
    """Check every row of random batches of random trees."""
    rng = random.Random(5)
    live: list[Live] = []
    for _ in range(batches):
        while len(live) < rng.randrange(1, 6):
            live.append(Live(target, rng))
        rng.shuffle(live)
        while len(live) > 1 and rng.random() < 0.1:
            live.pop().sequence.close()
        outputs = target.step([(one.sequence, one.piece()) for one in live])
        for one, output in zip(live, outputs, strict=True):
            one.check(output)
