"""MTP: drafts equal transformers', output is the target's own."""

from __future__ import annotations

import itertools
import random
import shutil
from functools import cache

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers.generation.candidate_generator import MTPCandidateGenerator

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.mtp.drafter import Mtp
from ianvs_specdec.drafters.mtp.files import load_mtp
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.models.loading import CAUSAL, load
from ianvs_specdec.targets.registry import create_target
from tests.support.lengths import ScriptedLength
from tests.support.mtp import build_mtp
from tests.support.requests import alone, decoded, request_of, run
from tests.support.slow_cases import slow_unless
from tests.support.tiny import tiny_model

RNG = random.Random(0)
PROMPTS = [[RNG.randrange(16) for _ in range(tokens)] for tokens in (8, 1, 21, 2)]
GREEDY = Sampling(max_tokens=24)
CASES = [("deepseek_v3", 1), ("deepseek_v3", 3), ("glm4_moe", 1), ("glm4_moe", 2), ("mellum", 1)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("mtp")

    @cache
    def folder_of(case):
        return build_mtp(base / f"{case[0]}-{case[1]}", *case)

    return folder_of


def target_in(folder, dtype=torch.float32, **settings):
    return create_target(load(CAUSAL, folder, what="the model", dtype=dtype), **settings)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_drafts_equal_those_of_transformers(folders, case, monkeypatch):
    target, drafter = target_in(folders(case)), Mtp()
    drafter.prepare(target)  # which makes known to transformers where the layers of so small a model are
    accepted, drafted = [], []
    get_candidates = MTPCandidateGenerator.get_candidates

    def recorded(self, input_ids, *args, **kwargs):
        candidates, logits = get_candidates(self, input_ids, *args, **kwargs)
        drafted.append(candidates[0, input_ids.shape[1] :].tolist())
        return candidates, logits

    monkeypatch.setattr(MTPCandidateGenerator, "get_candidates", recorded)
    monkeypatch.setattr(
        MTPCandidateGenerator, "update_candidate_strategy", lambda self, ids, scores, n: accepted.append(int(n))
    )
    total = 0
    for prompt in PROMPTS if case[1] == 1 else PROMPTS[::2]:  # transformers cannot have fewer tokens than layers
        accepted.clear(), drafted.clear()
        ids = target.model.generate(
            torch.tensor([prompt]), use_mtp=True, do_sample=False, max_new_tokens=GREEDY.max_tokens
        )
        trees = []
        result = decoded(target, drafter, "full", prompt, GREEDY, trace_trees=trees)
        assert result.token_ids == ids[0, len(prompt) :].tolist()
        assert [step.accepted for step in result.trace.steps] == accepted[1:]
        for tree, theirs in zip(trees, drafted[1:], strict=True):
            # Ours are never longer than what may still be put out.
            assert tree.tokens[1:] == theirs[: len(tree) - 1]
        assert all(len(tree) - 1 == case[1] for tree in trees[: -case[1]])
        total += sum(accepted)
    assert total > 3


def plain_scores(target, mtp, tokens, guesses):
    """Logits ``[guesses, vocabulary]`` of one layer that goes on by itself, by equations 21 to 23 of arXiv 2412.19437,
    over all of the sequence each time. The states of guesses are the layer's own."""
    (layer,) = mtp.layers
    with torch.inference_mode():
        states = target.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states[-1][0, :-1]
        found = []
        for count in range(len(guesses)):
            ids = torch.tensor([*tokens[1:], *guesses[:count]])
            embedded = target.embedding[ids]
            paired = layer.eh_proj(torch.cat([layer.enorm(embedded), layer.hnorm(states)], dim=-1))[None]
            positions = torch.arange(1, len(ids) + 1)[None]
            mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
            rotary = target.model.model.rotary_emb(paired, position_ids=positions)
            out = layer.mtp_block(
                paired, attention_mask=mask, position_embeddings=rotary, position_ids=positions, past_key_values=None
            )[0]
            out = layer.post_norm(out)
            found.append(functional.linear(out[-1], target.model.lm_head.weight))
            states = torch.cat([states, out[-1:]])
    return torch.stack(found)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(max_tokens=24, temperature=0.8, top_k=3)], ids=str)
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_the_last_layer_continues_from_its_own_state(folders, family, sampling):
    """Drawn tokens have their distributions."""
    target = target_in(folders((family, 1)))
    mtp = load_mtp(target)
    for prompt in PROMPTS[:2]:
        trees = []
        result = decoded(target, Mtp(depth=4), "full", prompt, sampling, trace_trees=trees)
        tokens, place = [*prompt, *result.token_ids], len(prompt)
        assert trees[0].depth == 4
        for (_, count), tree in zip(result.trace.chunks, trees, strict=False):
            place += count
            if not (guesses := tree.tokens[1:]):
                continue
            scores = plain_scores(target, mtp, tokens[:place], guesses)
            if sampling.greedy:
                assert scores.argmax(dim=-1).tolist() == guesses
                continue
            scores = scores / 0.8
            scores[scores < scores.topk(3).values[:, -1:]] = -torch.inf
            drawn = torch.stack([tree.probabilities[node] for node in range(len(guesses))])
            torch.testing.assert_close(drawn, scores.softmax(dim=-1), rtol=1e-3, atol=1e-5)
            assert all(q[token] > 0 for q, token in zip(drawn, guesses, strict=True))


SHORT, SAMPLED = Sampling(max_tokens=16), Sampling(max_tokens=16, temperature=0.8, top_p=0.9)
ROUNDED = [("float32", None), ("bfloat16", None), ("float32", "int8"), ("float32", "int4")]
ALL = list(itertools.product([("deepseek_v3", 3), ("glm4_moe", 1), ("mellum", 1)], ROUNDED))


@pytest.mark.parametrize(
    ("case", "rounded"), slow_unless(ALL, lambda each: each[1] == ROUNDED[0] or each[0][1] == 3), ids=str
)
def test_output_is_the_targets_own(folders, case, rounded):
    """Eight concurrent requests with budgets of 0 and more, after which the layers catch up."""
    dtype, quantization = rounded
    target = target_in(folders(case), getattr(torch, dtype), quantization=quantization)
    drafter, before = Mtp(depth=4), {name: value.clone() for name, value in target.model.named_buffers()}
    drafter.prepare(target)
    for name, value in target.model.named_buffers():
        assert value.dtype == before[name].dtype, "shared with the layers, which are moved"
        assert torch.equal(value, before[name])
    for sampling in (SHORT, SAMPLED):
        length = ScriptedLength(lambda stats, step: (4, 0, 3, 0, 0, 0, 1, 2)[(stats.context_tokens + step) % 8])
        requests = [request_of(target, prompt, sampling, drafter.fork()) for prompt in 2 * PROMPTS]
        run(Engine(target, length, max_batch_size=8), *requests)
        own = 2 * [alone(target, prompt, sampling) for prompt in PROMPTS]
        for request, expected in zip(requests, own, strict=True):
            result = request.result()
            pairs = enumerate(zip(result.token_ids, expected, strict=True))
            first = next((place for place, (ours, theirs) in pairs if ours != theirs), None)
            assert first is None or first in dict(result.trace.near_ties)
        assert sum(step.accepted for request in requests for step in request.result().trace.steps)


def changed(folder, to, change):
    """A copy of a checkpoint with changed tensors."""
    shutil.copytree(folder, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def without(tensors):
    for name in [name for name in tensors if "layers.2." in name]:
        del tensors[name]


NORM = "model.layers.2.enorm.weight"
DAMAGED = {
    "a tensor is missing": (lambda tensors: tensors.pop(NORM), "missing"),
    "not a number": (lambda tensors: tensors[NORM].fill_(torch.nan), "enorm.weight holds numbers that are not finite"),
    "another shape": (
        lambda tensors: tensors.update({NORM: torch.ones(16)}),
        "another shape than config.json asks for",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_layers_are_refused(folders, tmp_path, name):
    change, message = DAMAGED[name]
    target = target_in(changed(folders(("glm4_moe", 1)), tmp_path / "model", change))
    with pytest.raises(UserError, match=f"cannot load the MTP layers of .*{message}") as caught:
        Mtp().prepare(target)
    assert caught.value.key == "model"


def test_a_model_without_layers_is_refused(folders, tmp_path):
    folder = changed(folders(("glm4_moe", 1)), tmp_path / "model", without)
    for refuse in (
        lambda: drafters.check_files("mtp", {}, None, folder),
        lambda: Mtp().prepare(target_in(folder)),
    ):
        with pytest.raises(UserError, match="holds no weights of MTP layers: choose a checkpoint that has them"):
            refuse()
    drafters.check_files("mtp", {}, None, folders(("glm4_moe", 1)))
    with pytest.raises(UserError, match="transformers knows no MTP layers of llama"):
        Mtp().prepare(create_target(tiny_model()))
