"""Heads that the package ``speculators`` has made draft what its own forward does, step for step.

The package is no dependency; without it the same formats are held against the definition (``eagle_oracle``).
"""

from __future__ import annotations

import random
import warnings

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.targets.registry import target_of
from tests.drafters.eagle_heads import ENGINES, run, wide
from tests.drafters.eagle_oracle import CONFIG, HIDDEN, VOCABULARY

DRAFT, STEPS = 15, 4
FLAGS = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm")
HEADS = {
    "plain": ("llama", (), {}),
    "usual": ("llama", FLAGS[:3], {}),
    "eagle3.1": ("qwen3", (FLAGS[1], FLAGS[3]), {"attention_bias": True}),
    "window": ("llama", FLAGS[:1], {"layer_types": ["sliding_attention"], "sliding_window": 6}),
}


def package_head(label, folder):
    """A random head of the package's, saved in ``folder``."""
    pytest.importorskip("speculators", reason="speculators is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from speculators.config import SpeculatorsConfig, VerifierConfig
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
        from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import AutoConfig

    kind, flags, changes = HEADS[label]
    layer = AutoConfig.for_model(kind, **{**CONFIG, **changes})
    layer._attn_implementation = "eager"
    told = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=DRAFT,
        speculators_config=told,
        **{name: name in flags for name in FLAGS},
    )
    torch.manual_seed(0)
    head = Eagle3DraftModel(config).float().eval()
    for parameter in head.parameters():
        parameter.data = 0.2 * torch.randn(parameter.shape) + (parameter.ndim == 1)
    chosen = torch.randperm(VOCABULARY)[:DRAFT].sort().values
    head.d2t.copy_(chosen - torch.arange(DRAFT))
    head.t2d.zero_()[chosen] = True
    head.save_pretrained(folder)
    return head


@torch.inference_mode()
def package_draft(head, model, text, drafted):
    """What the package drafts after ``text`` at each step, given the tokens ``drafted`` before it."""
    states = model(torch.tensor([text[:-1]]), output_hidden_states=True).hidden_states
    layers = model.config.num_hidden_layers
    features = torch.cat([states[i] for i in (2, layers // 2, layers - 3)], dim=-1)
    features = torch.cat([features, features.new_zeros(1, len(drafted), 3 * HIDDEN)], dim=1)
    ids = torch.tensor([[*text[1:], *drafted]])
    steps = head(features, ids, torch.zeros_like(ids), ttt_steps=len(drafted))
    found = [int(tokens[0, len(text) - 2]) for tokens in steps]
    return [token + int(head.d2t[token]) for token in found]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("label", HEADS)
def test_drafts_are_those_of_the_package(tmp_path, label, engine):
    head, model, rng = package_head(label, tmp_path), wide(), random.Random(0)
    target, drafted = target_of(model, engine=engine), 0
    drafter = drafters.create("eagle", {"head": tmp_path, "tree": "chain", "depth": STEPS - 1})
    for prompt in ([rng.randrange(3, VOCABULARY) for _ in range(length)] for length in range(4, 20, 2)):
        for text, tree in run(target, drafter, prompt, max_tokens=64)[0]:
            # In training the package's window is that of the row which a draft begins with, not of each position.
            tokens = tree.tokens[1 : 2 if label == "window" else None]
            drafted += len(tokens)
            assert tokens == package_draft(head, model, text, tokens)
    assert drafted > 8 * 32
