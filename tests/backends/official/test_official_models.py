"""The published packages themselves: output and steps.

``make test-official`` makes their environments and names the folder of them in SPECDEC_OFFICIAL.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ianvs_specdec.backends import backend
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Sampling
from tests.drafters.eagle_oracle import random_tensors, save
from tests.support.models import build_model
from tests.support.packages import package_python
from tests.support.paths import EXAMPLE

CLOUD, CLOUD_HEAD = EXAMPLE / "models" / "cloud", EXAMPLE / "models" / "cloud-eagle"
TOKENS = 48
ROWS = 3
PUBLISHED: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    # The package, its options, our method of the same name, and the same in its options.
    ("eagle-llm", {}, "EagleSpecDec", {"tree": "static"}),
    (
        "eagle-llm",
        {"tree": "chain", "depth": 7},
        "EagleSpecDec",
        {"tree": "chain", "total_tokens": 8, "depth": 6, "eagle_topk": 1},
    ),
    (
        "lade",
        {"level": 5, "window": 7, "guess": 7},
        "LadeSpecDec",
        {"start": "official", "level": 5, "window": 7, "guess": 7},
    ),
]
NAMES = ["eagle-llm static", "eagle-llm chain", "lade"]

pytestmark = pytest.mark.slow


def published(package: str, model: Path, head: Path, **options: Any) -> LLM:
    own = {"eagle_python": str(package_python(package)), "head": str(head)}
    named = own if package == "eagle-llm" else {"lade_python": str(package_python(package))}
    return backend(package)(str(model), dtype="float32", threads=1, **named, **options)


def answers(llm: LLM, tokens: int = TOKENS, characters: int | None = None) -> list[Completion]:
    """To questions of the example, or to their first ``characters``."""
    rows = (EXAMPLE / "dataset" / "open-ended" / "test.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(row)["question"]["turns"][0] for row in rows[:: len(rows) // ROWS][:ROWS]]
    asked = [[{"role": "user", "content": text[:characters]}] for text in questions]
    with llm:
        return [llm.generate(messages, Sampling(max_tokens=tokens)) for messages in asked]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A random Llama and a random head as EAGLE's authors publish them."""
    home = tmp_path_factory.mktemp("tiny")
    model = build_model(home / "model", window=256)
    told = json.loads((model / "config.json").read_text())
    sizes = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "head_dim")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    config |= {"hidden_act": "silu", "rms_norm_eps": 1e-6, "pad_token_id": 0, "torch_dtype": "float32"}
    config |= {name: told[name] for name in (*sizes, "max_position_embeddings")}
    return model, save(home / "head", random_tensors(config), config)


@pytest.mark.parametrize(("package", "options", "ours", "same"), PUBLISHED, ids=NAMES)
def test_the_package_has_our_output_and_steps(
    package: str, options: dict[str, Any], ours: str, same: dict[str, Any]
) -> None:
    theirs = answers(published(package, CLOUD, CLOUD_HEAD, **options))
    common = {"dtype": "float32", "threads": 1}
    plain = answers(backend("autoregressive")(str(CLOUD), **common))
    drafting = {**same, "head": str(CLOUD_HEAD)} if ours == "EagleSpecDec" else same
    own = answers(backend(ours)(str(CLOUD), **common, **drafting))
    for answer, expected, other in zip(theirs, plain, own, strict=True):
        assert answer.token_ids == expected.token_ids
        assert (answer.text, answer.finish_reason) == (expected.text, expected.finish_reason)
        assert answer.prompt_tokens == expected.prompt_tokens
        prefills = 1 if package == "eagle-llm" else 0
        assert sum(step.emitted for step in answer.trace.steps) == len(answer.token_ids) - prefills
        assert answer.trace.tokens == len(answer.token_ids)
        assert [step.emitted for step in answer.trace.steps] == [step.emitted for step in other.trace.steps]
    steps = [step for answer in theirs for step in answer.trace.steps]
    assert all(step.emitted <= step.accepted + 1 <= step.drafted + 1 <= step.verified for step in steps)
    assert len(steps) < sum(len(answer.token_ids) - 1 for answer in theirs), "no draft was ever accepted"


@pytest.mark.parametrize("package", ["eagle-llm", "lade"])
def test_random_models_in_the_published_layout(package: str, tiny: tuple[Path, Path]) -> None:
    # So short that the answers fit into eagle-llm's window as well, which is smaller by a tree.
    theirs = answers(published(package, *tiny), characters=60)
    plain = answers(backend("autoregressive")(str(tiny[0]), dtype="float32", threads=1), characters=60)
    assert [answer.token_ids for answer in theirs] == [answer.token_ids for answer in plain]
    assert all(answer.trace.steps for answer in theirs)


@pytest.mark.parametrize("package", ["eagle-llm", "lade"])
def test_stop_strings_limits_and_a_full_window(package: str, tiny: tuple[Path, Path]) -> None:
    model, head = tiny
    ask: Any = {"role": "user", "content": "hello"}
    with published(package, model, head) as llm, backend("autoregressive")(str(model), dtype="float32") as ours:
        whole = ours.generate([ask], Sampling(max_tokens=TOKENS))
        for tokens in (1, 2, 7):
            short = llm.generate([ask], Sampling(max_tokens=tokens))
            assert (short.token_ids, short.finish_reason) == (whole.token_ids[:tokens], "length")
        stop = Sampling(max_tokens=TOKENS, stop=(whole.text[5:8],))
        assert llm.generate([ask], stop).token_ids == ours.generate([ask], stop).token_ids
        # To the last token that fits.
        most = Sampling(max_tokens=1000)
        full = llm.generate([ask], most)
        rest = ours.generate([ask], most)
        assert full.token_ids == rest.token_ids[: len(full.token_ids)]
        assert len(rest.token_ids) - len(full.token_ids) == (26 if package == "eagle-llm" else 0)
        assert full.finish_reason == "length"


@pytest.mark.parametrize("package", ["eagle-llm", "lade"])
@pytest.mark.parametrize("damage", ["layers are missing", "a weight is no number"])
def test_damaged_weights_are_rejected(package: str, damage: str, tiny: tuple[Path, Path], tmp_path: Path) -> None:
    model = shutil.copytree(tiny[0], tmp_path / "model")
    if damage == "layers are missing":
        told = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**told, "num_hidden_layers": 4}))
    else:
        tensors = load_file(model / "model.safetensors")
        tensors["model.norm.weight"][3] = float("nan")
        save_file(tensors, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"weights are (missing|not finite): model") as error:
        published(package, model, tiny[1]).load()
    assert "\n" not in str(error.value)
