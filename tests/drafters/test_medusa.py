"""Medusa: checkpoint format, trees, and lossless output."""

from __future__ import annotations

import json

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.medusa.drafter import STATIC_PATHS
from ianvs_specdec.drafters.medusa.heads import Heads, heads_for
from ianvs_specdec.engine import Context, Output, TokenTree
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.requests import decoded
from tests.support.tiny import VOCABULARY, tiny_model

HIDDEN = 32


def random_heads(heads=3, layers=1, hidden=HIDDEN, vocabulary=VOCABULARY, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator) * 0.3

    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = draw(hidden, hidden)
            tensors[f"{head}.{layer}.linear.bias"] = draw(hidden)
        tensors[f"{head}.{layers}.weight"] = draw(vocabulary, hidden)
    return tensors


def save(folder, tensors, **config):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "medusa_lm_head.pt")
    return folder


class GivenLogits(Heads):
    """Heads with given logits."""

    def __init__(self, logits):
        self._logits = torch.tensor(logits)

    def __len__(self):
        return len(self._logits)

    def __call__(self, hidden, heads):
        return self._logits[None, :heads]


def proposal(probabilities, budget, *, remaining=100, confidence=0.0, sampling=None, noise=None, later=(), **options):
    """The tree for heads with these probabilities, one list per head. The request begins with tokens 4 and 9; those in
    ``later`` come before the proposal."""
    medusa = drafters.create("medusa", {"head": ".", **options})
    target = HuggingFaceTarget(tiny_model())
    sampling = sampling or Sampling()
    context = Context([4, 9], 1, remaining, sampling, torch.Generator(), noise, confidence)
    medusa._heads = GivenLogits([[torch.tensor(p).log().item() for p in row] for row in probabilities])
    medusa._paths = STATIC_PATHS
    medusa.begin(target, context, Output(torch.zeros(1, 4), (torch.zeros(2, HIDDEN),)))
    context.tokens += later
    return medusa.propose(context, budget)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tuple(tree.tokens[i] for i in tree.path_to(node)[1:]) for node in range(1, len(tree))}


TWO_HEADS = [[0.1, 0.6, 0.25, 0.05], [0.7, 0.06, 0.04, 0.2]]


def test_the_dynamic_tree_holds_the_most_probable_paths():
    """Token 1: 0.6; 1-0: 0.42; 2: 0.25; 2-0: 0.175; 1-3: 0.12; 0: 0.1."""
    assert paths(proposal(TWO_HEADS, 5)) == {(1,), (1, 0), (2,), (2, 0), (1, 3)}
    assert paths(proposal(TWO_HEADS, 1)) == {(1,)}
    assert paths(proposal(TWO_HEADS, 100, nodes=3)) == {(1,), (1, 0), (2,)}
    assert proposal(TWO_HEADS, 5).tokens[:3] == [9, 1, 0]


def test_confidence_limits_drafts():
    assert paths(proposal(TWO_HEADS, 16, confidence=0.2)) == {(1,), (1, 0), (2,)}
    assert paths(proposal(TWO_HEADS, 16, confidence=0.2, tree="static")) == {(1,), (1, 0), (2,)}
    assert paths(proposal(TWO_HEADS, 16, confidence=0.9)) == set()
    for tree in ("dynamic", "static", "chain"):
        assert paths(proposal([[0.0, 1.0], [1.0, 0.0]], 16, confidence=1.0, tree=tree)) == {(1,), (1, 0)}


def test_the_static_tree_is_the_official_one():
    assert (len(STATIC_PATHS), len(set(STATIC_PATHS))) == (63, 63)
    assert all(path[:-1] in STATIC_PATHS[:i] for i, path in enumerate(STATIC_PATHS) if len(path) > 1)
    by_depth = [sum(len(path) == depth for path in STATIC_PATHS) for depth in range(1, 6)]
    assert by_depth == [10, 28, 23, 2, 0]
    flat = [[0.3 - 0.025 * token for token in range(12)]] * 4
    tree = proposal(flat, 100, tree="static", nodes=63)
    assert paths(tree) == set(STATIC_PATHS)
    assert paths(proposal(flat, 6, tree="static", nodes=63)) == set(STATIC_PATHS[:6])
    assert paths(proposal(flat[:2], 100, tree="static", nodes=63)) == {p for p in STATIC_PATHS if len(p) <= 2}


def test_coupled_guesses_use_the_shared_noise():
    noise = Noise(3, 4, torch.device("cpu"))
    drawn = [int((torch.tensor(row).log() + noise.at(2 + i)).argmax()) for i, row in enumerate(TWO_HEADS)]
    for tree in ("dynamic", "static", "chain"):
        drafted = proposal(TWO_HEADS, 4, sampling=Sampling(temperature=1.0), noise=noise, tree=tree)
        assert tuple(drawn) in paths(drafted)
        assert drafted.tokens[1] == drawn[0]


@pytest.mark.parametrize("layers", [0, 1, 2])
def test_the_heads_follow_their_format(tmp_path, layers):
    tensors = random_heads(heads=3, layers=layers)
    save(tmp_path, tensors, medusa_num_heads=3, medusa_num_layers=layers)
    heads = heads_for(tmp_path, HuggingFaceTarget(tiny_model()))
    hidden = torch.randn(HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = []
    for head in range(3):
        x = hidden
        for layer in range(layers):
            inner = tensors[f"{head}.{layer}.linear.weight"] @ x + tensors[f"{head}.{layer}.linear.bias"]
            x = x + inner * torch.sigmoid(inner)
        expected.append(tensors[f"{head}.{layers}.weight"] @ x)
    torch.testing.assert_close(heads(hidden[None], 3)[0], torch.stack(expected))
    torch.testing.assert_close(heads(hidden[None], 2)[0], torch.stack(expected[:2]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("1.0.linear.bias"), r"lacks the tensor 1\.0\.linear\.bias, expected \[32\]"),
        (lambda t: t.clear(), r"lacks the tensor 0\.0\.linear\.weight"),
    ],
)
def test_a_wrong_tensor_is_named(tmp_path, change, message):
    tensors = random_heads(heads=2)
    change(tensors)
    save(tmp_path, tensors, medusa_num_heads=2, medusa_num_layers=1)
    with pytest.raises(UserError, match=message) as caught:
        drafters.create("medusa", {"head": tmp_path}).prepare(HuggingFaceTarget(tiny_model()))
    assert "medusa_lm_head.pt" in str(caught.value)
    assert caught.value.key == "head"


def test_tau_on_the_reference_target(shared, reference_model):
    """At least the official tree's tau on the same prompts."""
    traces = json.loads((shared / "reference" / "traces" / "eagle1_strong.json").read_text())
    target = HuggingFaceTarget(reference_model)
    tau = {}
    for tree in ("static", "dynamic"):
        medusa = drafters.create("medusa", {"head": shared / "reference" / "medusa", "tree": tree, "nodes": 63})
        steps = []
        for trace in traces[1:3]:
            result = decoded(target, medusa, "full", trace["prompt"], Sampling(max_tokens=48), eos_ids=[2])
            assert [*trace["prompt"], *result.token_ids] == trace["output"][: len(trace["prompt"]) + 48]
            steps += result.trace.steps
        tau[tree] = sum(step.emitted for step in steps) / len(steps)
    assert tau["dynamic"] >= tau["static"] > 3
