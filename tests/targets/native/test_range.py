"""Two ranges of layers, one behind the other, compute the bits of the whole model, wherever it is cut."""

from __future__ import annotations

import random

import pytest
import torch

from ianvs_specdec.engine.contracts import PromptChunk
from ianvs_specdec.targets.native.layer_range import LayerRange, Rows
from ianvs_specdec.targets.native.model import POSITIONS_AT_ONCE, Rotations
from tests.support.tiny import VOCABULARY, random_tree
from tests.targets.native.test_invariance import made

LAYERS = 3


class Halves:
    """One sequence in both ranges."""

    def __init__(self, lower: LayerRange, upper: LayerRange) -> None:
        self._ranges = lower, upper
        self._states = [each.model.open() for each in self._ranges]

    def step(self, tokens: list[int], parents: list[int] | None = None, last: bool = False) -> torch.Tensor:
        given: list[int] | torch.Tensor = tokens
        for layers, state in zip(self._ranges, self._states, strict=True):
            given = layers.step([Rows(state, len(tokens), parents, last)], given)
        assert isinstance(given, torch.Tensor)
        return given

    def commit(self, path: list[int]) -> None:
        for state in self._states:
            state.commit(path)


@pytest.mark.parametrize("cut", range(1, LAYERS))
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", "float32"),
        ("qwen3", "bfloat16"),
        ("qwen2", "int4"),
        ("gemma2 family", "float32"),
        ("qwen3-moe family", "bfloat16"),
    ],
)
def test_every_cut_has_the_bits_of_the_whole_model(name: str, kind: str, cut: int) -> None:
    rng = random.Random(cut)
    target = made(name, kind, num_hidden_layers=LAYERS)
    halves, whole = Halves(target.part(0, cut), target.part(cut, LAYERS)), target.open()
    prompt = [rng.randrange(VOCABULARY) for _ in range(7)]
    for piece in (PromptChunk(prompt[:4], last=False), PromptChunk(prompt[4:])):
        (output,) = target.step([(whole, piece)])
        assert torch.equal(halves.step(list(piece.tokens), last=piece.last), output.logits)
    for nodes in (1, 6, 9):
        tree = random_tree(rng, nodes)
        (output,) = target.step([(whole, tree)])
        assert torch.equal(halves.step(tree.tokens, tree.parents), output.logits)
        path = tree.path_to(rng.randrange(len(tree)))
        whole.commit(path)
        halves.commit(path)


def test_rotations_that_another_thread_makes_longer_stay_whole() -> None:
    def make(first: int) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(first, first + POSITIONS_AT_ONCE).float()[:, None]
        return positions, positions

    other = Rotations(make)
    longer = other(2 * POSITIONS_AT_ONCE)

    class Raced(Rotations):
        """Another thread sets what is made, after each look at it."""

        looks = 0

        @property
        def _made(self) -> tuple[torch.Tensor, torch.Tensor]:
            self.looks += 1
            return make(0) if self.looks == 1 else longer

        @_made.setter
        def _made(self, made: object) -> None: ...

    cosine, _ = Raced(make)(3 * POSITIONS_AT_ONCE)
    assert torch.equal(cosine[:, 0], torch.arange(3 * POSITIONS_AT_ONCE).float())
