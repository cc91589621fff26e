"""DFlash heads: drafts are those of transformers, tokens are the target's own, and a wrong folder is told by name."""

from __future__ import annotations

import copy
import random

import pytest
import torch
import transformers
from safetensors.torch import save_file
from transformers.generation import candidate_generator

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.dflash.head import DFlashHead
from ianvs_specdec.drafters.dflash.layout import check_files, head_config
from ianvs_specdec.drafters.eagle.steps import Pairs
from ianvs_specdec.drafters.tensors import read_tensors
from ianvs_specdec.engine import decode
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.memory import tensor_bytes
from ianvs_specdec.engine.request import Request
from ianvs_specdec.models.validation import ModelSizes, check_model
from ianvs_specdec.targets.registry import create_target
from tests.support.drafters import Workshop
from tests.support.families import family_model
from tests.support.paths import EXAMPLE
from tests.support.requests import run, target_of_kind
from tests.support.tiny import tiny_model

VOCABULARY, BLOCK = 16, 5  # so few that even heads of random numbers are often right
RNG = random.Random(0)
READ = {"mask_token_id": 1, "target_layer_ids": [0, 1]}
PROMPTS = [[RNG.randrange(VOCABULARY - 1) for _ in range(length)] for length in (1, 2, 5, 9, 17, 33, 40, 12)]


@pytest.fixture(scope="module")
def model():
    return tiny_model(vocab_size=VOCABULARY, num_hidden_layers=3)


@pytest.fixture(scope="module")
def workshop(model, tmp_path_factory):
    return Workshop(model, tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def head(workshop):
    return workshop.dflash(workshop.folder / "dflash")


def assistant_of(folder, model, layer_type):
    """A head of random numbers as transformers computes it, saved in ``folder``."""
    torch.manual_seed(1)
    size = model.config.hidden_size
    config = transformers.MuseGlimmerAssistantConfig(
        hidden_size=size,
        intermediate_size=2 * size,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        layer_types=[layer_type, "full_attention"],
        sliding_window=8,
        block_size=BLOCK,
        mask_token_id=VOCABULARY - 1,
        target_layer_ids=[0, 2],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )
    assistant = transformers.MuseGlimmerAssistantModel(config).eval()
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.normal_(mean=float(parameter.ndim == 1), std=0.3)
    assistant.save_pretrained(folder)
    return assistant


def theirs(model, assistant, prompt, tokens, monkeypatch):
    """What transformers drafts in each step, the root first, and the tokens that it writes."""
    drafts, generator = [], candidate_generator.DFlashTokenCandidateGenerator
    plain = generator.get_candidates

    def noted(self, input_ids, **arguments):
        found = plain(self, input_ids, **arguments)
        if found[1] is not None:
            drafts.append(found[0][0, input_ids.shape[1] - 1 :].tolist())
        return found

    monkeypatch.setattr(generator, "get_candidates", noted)
    ids = torch.tensor([prompt])
    settings = {"do_sample": False, "max_new_tokens": tokens, "eos_token_id": None, "pad_token_id": 0}
    settings |= {"attention_mask": torch.ones_like(ids), "speculation_type": "dflash"}
    out = model.generate(ids, assistant_model=assistant, **settings)
    monkeypatch.undo()
    return drafts, out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize("kind", ["native", "fused", "transformers"])
def test_drafts_are_those_of_transformers_step_for_step(kind, layer_type, model, tmp_path, monkeypatch):
    assistant = assistant_of(tmp_path / "assistant", model, layer_type)
    target = target_of_kind(kind, copy.deepcopy(model))
    accepted = 0
    for prompt in PROMPTS:
        expected, written = theirs(model, assistant, prompt, 64, monkeypatch)
        trees = []
        drafter = drafters.create("dflash", {"head": tmp_path / "assistant"})
        settings = {"eos_ids": [], "trace_trees": trees}
        done = decode(target, drafter, lengths.create("full"), prompt, Sampling(max_tokens=64), **settings)
        assert done.token_ids == written
        ours = [tree.tokens for tree in trees if len(tree) > 1]
        # Theirs ends with whole blocks, ours where the answer does.
        assert ours == [whole[: len(own)] for own, whole in zip(ours, expected, strict=False)]
        assert len(expected) - len(ours) in (0, 1)
        assert all(len(own) == BLOCK for own in ours[:-BLOCK])
        accepted += sum(step.accepted for step in done.trace.steps)
    assert accepted > 16
    assert tensor_bytes(drafter, exclude=[target, *target.weights]) > sum(
        part.nbytes for part in assistant.parameters()
    )


def sequences(target, drafter, length, count, sampling):
    """What ``count`` requests at once write."""
    drafter.prepare(target)
    engine = Engine(target, lengths.create(length), max_batch_size=count)
    rule = "rejection" if sampling.greedy else "coupled"
    made = [
        Request(target, drafter.fork(), PROMPTS[number % len(PROMPTS)], sampling, eos_ids=[], rule=rule)
        for number in range(count)
    ]
    run(engine, *made)
    return [request.result().token_ids for request in made]


def test_logits_have_the_same_bits_alone_and_beside_others(model, head):
    target = target_of_kind("native", copy.deepcopy(model).to(torch.bfloat16))
    generator = torch.Generator().manual_seed(2)
    features = [torch.randn(2, size, model.config.hidden_size, generator=generator) for size in (3, 40, 17)]

    def logits(chosen, pieces):
        computed = DFlashHead(head, target)
        sequences = [computed.open() for _ in chosen]
        for sequence, number in zip(sequences, chosen, strict=True):
            for piece in features[number].chunk(pieces, dim=1):
                computed.keep(sequence, Pairs([0] * piece.shape[1], list(piece)))
        return computed.draft([(sequence, number, 4) for sequence, number in zip(sequences, chosen, strict=True)])

    together = logits([0, 1, 2], 1)
    assert all(torch.equal(logits([number], 3)[0], together[number]) for number in range(3))


@pytest.mark.parametrize("family", ["granite", "gemma2"])
def test_logits_have_the_targets_own_scale_and_cap(family, tmp_path):
    model = family_model(family)
    features = torch.randn(2, 6, model.config.hidden_size, generator=torch.Generator().manual_seed(2))
    logits = []
    for kind in ("native", "transformers"):
        head = DFlashHead(Workshop(model, tmp_path).dflash(tmp_path / kind), target_of_kind(kind, copy.deepcopy(model)))
        sequence = head.open()
        head.keep(sequence, Pairs([0] * 6, list(features)))
        logits += head.draft([(sequence, 3, 4)])
    torch.testing.assert_close(*logits, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"vocab_size": 32}, "vocabulary of 32, the target has 16"),
        (
            {"dflash_config": {**READ, "target_layer_ids": [0, 3]}},
            "DFlash head .* target_layer_ids of 3, and the target's last layer is 2",
        ),
        ({"block_size": 5000}, "block_size is 5000, more than max_position_embeddings, 4096"),
        ({"architectures": ["DFlash2DraftModel"]}, r"'DFlash2DraftModel'\], computed here are DFlash heads"),
        ({"dflash_config": {**READ, "selector_rank": 4}}, "unknown key of DFlash heads .selector_rank."),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope'"),
        ({"layer_types": ["sliding_attention"] * 2, "use_sliding_window": True}, "sliding_window is missing"),
        ({"num_hidden_layers": 3}, "lacks the tensor layers.2.input_layernorm.weight"),
        ({"num_hidden_layers": 1}, "tensor layers.1.* no place in a DFlash head of 1 layers"),
        ({"speculators_model_type": "dflash"}, "speculators"),
    ],
)
def test_a_configuration_of_another_head_is_refused_before_anything_is_loaded(workshop, tmp_path, config, told):
    folder = workshop.dflash(tmp_path / "head", **{"max_position_embeddings": 4096, **config})
    refused(folder, told)


def test_a_wrong_rotary_embedding_is_refused_when_the_head_is_loaded(workshop, tmp_path, model):
    folder = workshop.dflash(tmp_path / "head", rope_scaling={"rope_type": "linear", "factor": "2"})
    with pytest.raises(UserError, match=r"DFlash head .*config\.json: the parameters of the rotary embedding are"):
        DFlashHead(folder, create_target(copy.deepcopy(model)))


@pytest.mark.parametrize(("used", "window"), [(None, None), (False, None), (True, 8)])
def test_a_window_counts_where_it_is_used_and_the_layer_is_causal_all_the_same(used, window, workshop, tmp_path):
    settings = {"layer_types": ["sliding_attention"] * 2, "sliding_window": 8, "use_sliding_window": used}
    assert head_config(workshop.dflash(tmp_path / "head", **settings)).seen(0) == (window, True)


def refused(folder, told):
    with pytest.raises(UserError, match=told) as caught:
        check_files(folder, ModelSizes(VOCABULARY, 32, 3, 256))
    assert caught.value.key == "head"
    assert "dflash" in str(caught.value).lower()


def test_damaged_tensors_are_refused(head, tmp_path, model):
    tensors = read_tensors(head / "pytorch_model.bin", "head")

    def changed(**edits):
        folder = tmp_path / "head"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_bytes((head / "config.json").read_bytes())
        save_file({**tensors, **edits}, folder / "model.safetensors")
        return folder

    refused(changed(**{"fc.weight": torch.zeros(32, 96)}), r"fc\.weight has shape \[32, 96\], .* needs \[32, 64\]")
    refused(changed(**{"lm_head.weight": torch.zeros(16, 32)}), r"holds the tensor lm_head\.weight, .* a DFlash head")
    folder = changed(**{"norm.weight": torch.full((32,), torch.nan)})
    check_files(folder, None)
    with pytest.raises(UserError, match=r"DFlash head in .*norm\.weight"):
        drafters.create("dflash", {"head": folder}).prepare(create_target(copy.deepcopy(model)))
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    refused(folder, "cannot read the DFlash head")
    (folder / "model.safetensors").unlink()
    refused(folder, r"no DFlash head in .*model\.safetensors")


def test_a_head_is_no_model_and_no_head_of_another_format(head, tmp_path):
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_bytes((head / "config.json").read_bytes())
    save_file(read_tensors(head / "pytorch_model.bin", "head"), folder / "model.safetensors")
    with pytest.raises(UserError, match="it is a DFlash head, not a model"):
        check_model(folder, what="the model")
    refused(EXAMPLE / "models" / "cloud-eagle3", "DFlash head")
