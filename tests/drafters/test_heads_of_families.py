"""Heads of every format on the families of the native step: drafts change no output, and their probabilities are those
of the target's own scale and cap of logits."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.drafters.medusa.heads import heads_for
from ianvs_specdec.engine.memory import tensor_bytes
from ianvs_specdec.targets.native import library
from ianvs_specdec.targets.native.target import NativeTarget
from tests.drafters.eagle_oracle import CONFIG, HEADS, HIDDEN, PROMPT, Oracle, random_tensors, run, save
from tests.drafters.test_eagle import paths
from tests.drafters.test_medusa import random_heads
from tests.support.families import VOCABULARY, family_model
from tests.support.requests import alone, engine_of, request_of, results, target_of_kind
from tests.support.slow_cases import slow_unless

FAMILIES = ("smollm3", "phi3-longrope", "granite", "olmo2", "gemma2", "gemma3", "qwen3", "mixtral", "qwen3-moe")
WEIGHTS = ("float32", "bfloat16", "int8", "int4")
FAST = {("granite", "float32"), ("phi3-longrope", "bfloat16"), ("gemma3", "int8"), ("qwen3-moe", "int4")}
RNG = random.Random(1)
PROMPTS = [[RNG.randrange(3, VOCABULARY) for _ in range(1 + 3 * number % 20)] for number in range(16)]
AT_ONCE = (("full", 1), ("full", 3), ("goodput", 16))
MEDUSA = {
    "authors": ({}, ("{0}.0.linear", "{0}.1.weight")),
    "prefixed": ({}, ("medusa_heads.{0}.0.linear", "medusa_heads.{0}.1.weight")),
    "vllm": ({"num_heads": 3, "medusa_fc_bias": True}, ("blocks.{0}.layers.0", "lm_heads.{0}.weight")),
    "vllm, one output": (
        {"num_heads": 3, "medusa_fc_bias": True, "original_lm_head": True},
        ("blocks.{0}.layers.0", "lm_heads.0.weight"),
    ),
    "target's output": ({"medusa_num_heads": 3}, ("{0}.0.linear", None)),
}


def save_medusa(folder, label, model=None):
    """Random heads in one of the layouts; returns them by the authors' names, with the target's output where they have
    none."""
    tensors, (config, (block, output)) = random_heads(hidden=HIDDEN, vocabulary=VOCABULARY), MEDUSA[label]
    written = {}
    for head in range(3):
        for part in ("weight", "bias"):
            written[f"{block.format(head)}.{part}"] = tensors[f"{head}.0.linear.{part}"]
        if config.get("original_lm_head"):
            tensors[f"{head}.1.weight"] = tensors["0.1.weight"]
        if output:
            written[output.format(head)] = tensors[f"{head}.1.weight"]
        elif model is not None:
            tensors[f"{head}.1.weight"] = model.lm_head.weight.detach()
    save(folder, {}, config)
    (folder / "pytorch_model.bin").unlink()
    torch.save(written, folder / ("pytorch_model.bin" if label.startswith("vllm") else "medusa_lm_head.pt"))
    return tensors


def heads_of(root):
    """Method and options of a head in every format, for a target of four layers."""
    for label, (eagle3, changes) in HEADS.items():
        layers = {"eagle_aux_hidden_state_layer_ids": [1, 0, 3, 2]} if eagle3 else {}
        config = {**CONFIG, "vocab_size": VOCABULARY, **changes, **layers}
        yield "eagle", save(root / label, random_tensors(config, eagle3), config)
    for label in MEDUSA:
        save_medusa(root / label, label)
        yield "medusa", root / label


@pytest.mark.skipif(library.unavailable_reason() is not None, reason=library.unavailable_reason() or "")
@pytest.mark.parametrize(
    ("family", "weights"), slow_unless(itertools.product(FAMILIES, WEIGHTS), lambda case: case in FAST)
)
def test_heads_change_no_output(tmp_path, family, weights):
    model = family_model(family, hidden_size=HIDDEN)
    model = model.bfloat16() if weights == "bfloat16" else model
    target = NativeTarget(model, quantization=weights if weights.startswith("int") else None)
    expected = [alone(target, prompt) for prompt in PROMPTS]
    drafted = 0
    for (method, head), tree in itertools.product(list(heads_of(tmp_path)), ("chain", "dynamic")):
        drafter = drafters.create(method, {"head": head, "tree": tree})
        for length, count in AT_ONCE:
            requests = [request_of(target, prompt, drafter=drafter.fork()) for prompt in PROMPTS[:count]]
            got = results(engine_of(target, length), *requests)
            assert [result.token_ids for result in got] == expected[:count], (head.name, tree, length)
            drafted += sum(step.drafted for result in got for step in result.trace.steps)
    assert drafted > 1000


@pytest.mark.parametrize("kind", ["transformers", "native"])
@pytest.mark.parametrize("family", ["granite", "gemma2"])
def test_drafts_rank_by_the_targets_own_scale_and_cap(tmp_path, family, kind):
    model = family_model(family)
    target = target_of_kind(kind, model)
    for label in ("eagle", "eagle-frequent"):
        config = {**CONFIG, "vocab_size": VOCABULARY, **HEADS[label][1]}
        tensors = random_tensors(config)
        save(tmp_path / label, tensors, config)
        options = {"head": tmp_path / label, "total_tokens": 14, "depth": 3, "eagle_topk": 4}
        oracle = Oracle(model, tensors, config)
        for text, tree in run(target, drafters.create("eagle", options), PROMPT, max_tokens=6)[0]:
            oracle.read(text)
            assert paths(tree) == [path for path, _ in oracle.dynamic(14, 3, 4)]


@pytest.mark.parametrize("kind", ["transformers", "native"])
@pytest.mark.parametrize("label", MEDUSA)
def test_medusa_heads_are_read_in_every_layout(tmp_path, label, kind):
    model = family_model("gemma2")
    tensors = save_medusa(tmp_path, label, model)
    hidden = torch.randn(2, HIDDEN, generator=torch.Generator().manual_seed(1))
    expected = []
    for head in range(3):
        inner = hidden @ tensors[f"{head}.0.linear.weight"].T + tensors[f"{head}.0.linear.bias"]
        expected.append((hidden + torch.nn.functional.silu(inner)) @ tensors[f"{head}.1.weight"].T)
    logits = torch.stack(expected, dim=1)
    if MEDUSA[label][1][1] is None:
        most = model.config.final_logit_softcapping
        logits = (logits / most).tanh() * most
    with torch.inference_mode():
        target = target_of_kind(kind, model)
        heads = heads_for(tmp_path, target)
        found = heads(hidden, 3)
    torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-4)
    if label == "vllm, one output":
        blocks = 3 * 4 * HIDDEN * (HIDDEN + 1)
        assert tensor_bytes(heads, exclude=[target, model]) - blocks < 3 * 4 * VOCABULARY * HIDDEN
