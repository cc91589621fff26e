"""What a check finds in model files without loading them: through the check that the host calls."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from tests.support.damage import copy_of, with_config
from tests.support.paths import EXAMPLE

MODELS = EXAMPLE / "models"
EDGE, CLOUD = str(MODELS / "edge"), str(MODELS / "cloud")
HEADS = {name: str(MODELS / f"cloud-{name}") for name in ("eagle", "eagle3", "medusa")}


def refused(key: str, *told: str, kind: Any = EdgeModel, **hyperparameters: Any) -> None:
    with pytest.raises(UserError) as caught:
        kind.check_hyperparameters({"backend": "autoregressive", **hyperparameters})
    assert caught.value.key == key
    for text in told:
        assert text in str(caught.value)


@pytest.mark.parametrize(
    "hyperparameters",
    [
        {"model": EDGE, "backend": "huggingface"},
        {"model": CLOUD, "backend": "EagleSpecDec", "head": HEADS["eagle3"]},
        {"model": CLOUD, "backend": "MedusaSpecDec", "head": HEADS["medusa"]},
        {"model": CLOUD, "backend": "DraftModelSpecDec", "draft": EDGE},
        {"model": EDGE, "backend": "llamacpp"},
        {"model": "org/name", "backend": "huggingface"},
        {"model": "a-name", "backend": "api", "api_base_url": "http://127.0.0.1:1/v1", "head": {"EagleSpecDec": "x"}},
    ],
)
def test_whole_models_and_heads_that_fit_pass(hyperparameters: dict[str, Any]) -> None:
    EdgeModel.check_hyperparameters(hyperparameters)


BESIDE = [("eagle", "autoregressive"), ("eagle3", "vllm"), ("eagle", "llamacpp"), ("medusa", "huggingface")]


@pytest.mark.parametrize(("name", "backend"), BESIDE)
def test_a_head_is_no_model(name: str, backend: str) -> None:
    options = {"vllm_python": sys.executable} if backend == "vllm" else {}
    refused("model", "not a model", "name it as head", model=HEADS[name], backend=backend, **options)


def test_a_model_is_no_head() -> None:
    refused("head", "an EAGLE head is one Llama layer", model=CLOUD, backend="EagleSpecDec", head=CLOUD)
    refused("head", "no Medusa heads", model=CLOUD, backend="MedusaSpecDec", head=HEADS["eagle"])
    refused("draft", "not a model", model=CLOUD, backend="DraftModelSpecDec", draft=HEADS["eagle"])


@pytest.mark.parametrize("backend", ["EagleSpecDec", "SuffixSpecDec"])
def test_a_head_of_another_target_is_told(backend: str, tmp_path: Path) -> None:
    shallow = _of_size(tmp_path / "shallow", 256)
    refused("head", "at least 7; this one has 1", model=shallow, backend=backend, head=HEADS["eagle3"])
    other = _of_size(tmp_path / "narrow", 40)
    refused("head", "hidden size of 256, the target has 40", model=other, backend=backend, head=HEADS["eagle"])
    padded = with_config(MODELS / "cloud-eagle", tmp_path / "head", vocab_size=1040)
    refused("head", "embed_tokens.weight", "[1040, 256]", model=CLOUD, backend=backend, head=str(padded))


def test_medusa_heads_of_another_target_are_told(tmp_path: Path) -> None:
    folder = copy_of(MODELS / "cloud-medusa", tmp_path / "heads")
    refused("head", "the target has 40", model=_of_size(tmp_path, 40), backend="MedusaSpecDec", head=str(folder))
    from safetensors.torch import save_file

    pickled = folder / "medusa_lm_head.pt"
    save_file(torch.load(pickled, weights_only=True), folder / "medusa_lm_head.safetensors")
    pickled.unlink()
    refused("head", "the target has 40", model=_of_size(tmp_path, 40), backend="MedusaSpecDec", head=str(folder))
    EdgeModel.check_hyperparameters({"model": CLOUD, "backend": "MedusaSpecDec", "head": str(folder)})


def _of_size(folder: Path, hidden: int) -> str:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024, hidden_size=hidden, intermediate_size=8, num_hidden_layers=1, num_attention_heads=4
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    shutil.copy(MODELS / "edge" / "tokenizer.json", folder)
    return str(folder)


def test_damaged_weights_are_told_with_their_file(tmp_path: Path) -> None:
    folder = copy_of(MODELS / "edge", tmp_path / "edge")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    refused("model", f"{weights} is damaged or cut off", model=str(folder))
    refused("draft", f"{weights} is damaged", model=CLOUD, backend="DraftModelSpecDec", draft=str(folder))
    for name, file in (("eagle", "model.safetensors"), ("medusa", "medusa_lm_head.pt")):
        head = copy_of(MODELS / f"cloud-{name}", tmp_path / name)
        (head / file).write_bytes((head / file).read_bytes()[:-1000])
        backend = f"{name.capitalize()}SpecDec"
        refused("head", f"{head / file}", "damaged or cut off", model=CLOUD, backend=backend, head=str(head))


def test_a_missing_part_of_a_model_in_parts_is_named(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(EDGE)
    model.save_pretrained(tmp_path / "m", max_shard_size="1MB")
    shutil.copy(MODELS / "edge" / "tokenizer.json", tmp_path / "m")
    EdgeModel.check_hyperparameters({"model": str(tmp_path / "m")})
    index = tmp_path / "m" / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    part = sorted(set(document["weight_map"].values()))[1]
    (tmp_path / "m" / part).rename(tmp_path / part)
    refused("model", f"there is no file {tmp_path / 'm' / part}", model=str(tmp_path / "m"))
    for map_, told in ((dict.fromkeys(document["weight_map"], f"../{part}"), "name of a file"), ([], "weight_map")):
        index.write_text(json.dumps({"weight_map": map_}))
        refused("model", told, model=str(tmp_path / "m"))


@pytest.mark.parametrize("backend", ["autoregressive", "huggingface"])
@pytest.mark.parametrize("device", ["cuda:7", "abacus"])
def test_a_device_that_is_not_there_is_told(backend: str, device: str) -> None:
    refused("device", f"device {device!r} is not available", model=EDGE, backend=backend, device=device)


def test_heads_of_a_cloud_model_that_follows_the_edge_are_looked_at() -> None:
    heads = {"EagleSpecDec": HEADS["eagle"], "MedusaSpecDec": HEADS["medusa"]}
    same = {"backend": "same-as-edge", "model": CLOUD, "length": {"DraftModelSpecDec": "fixed:3"}}
    CloudModel.check_hyperparameters({**same, "head": heads})
    wrong = {**heads, "EagleSpecDec": HEADS["medusa"]}
    refused("head", "no EAGLE head", kind=CloudModel, **{**same, "head": wrong})


def test_looking_loads_nothing_heavy(tmp_path: Path) -> None:
    given = {"model": CLOUD, "backend": "EagleSpecDec", "head": HEADS["eagle3"]}
    code = (
        "import sys\n"
        "from ianvs_specdec.plugin.models import EdgeModel\n"
        f"EdgeModel.check_hyperparameters({given!r})\n"
        f"EdgeModel.check_hyperparameters({ {**given, 'backend': 'MedusaSpecDec', 'head': HEADS['medusa']}!r})\n"
        "print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(r"\[\]\s*", done.stdout)
