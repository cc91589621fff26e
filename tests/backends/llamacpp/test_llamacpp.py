"""llama.cpp as a back end: the same prompts, tokens and rules as our engine, on the embedded and on random models."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ianvs_specdec.backends.llamacpp.backend import LlamaCppLLM
from ianvs_specdec.backends.specdec import AutoregressiveLLM
from ianvs_specdec.common.errors import PromptError, UserError
from ianvs_specdec.common.types import Completion, Message, Sampling
from ianvs_specdec.models.gguf.exporting import export_gguf
from ianvs_specdec.plugin.models import CloudModel
from ianvs_specdec.records.identity import FileDigests
from tests.support.folders import CLOUD, EDGE, EXAMPLE, random_model

SAMPLING = Sampling(max_tokens=48)
installed = pytest.mark.skipif(
    importlib.util.find_spec("llama_cpp") is None,
    reason="llama-cpp-python is not installed (make test-llamacpp)",
)


def chat(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def prompts(name: str, count: int) -> list[list[Message]]:
    lines = (EXAMPLE / "dataset" / name / "test.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["question"] for line in lines[:: len(lines) // count]]
    return [chat(question if isinstance(question, str) else question["turns"][0]) for question in questions[:count]]


PROMPTS = [*prompts("knowledge", 4), *prompts("open-ended", 4)]


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Exported models go to a folder of the tests' own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        patch.delenv("RESULT_SAVED_URL", raising=False)
        yield folder


@pytest.fixture(scope="module")
def ours() -> Iterator[AutoregressiveLLM]:
    with AutoregressiveLLM(str(CLOUD), dtype="float32", threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def theirs(cache: Path) -> Iterator[LlamaCppLLM]:
    with LlamaCppLLM(str(CLOUD), gguf_type="f32", threads=1) as llm:
        yield llm


def answers(llm: Any, sampling: Sampling = SAMPLING) -> list[Completion]:
    return [llm.generate(messages, sampling) for messages in PROMPTS]


def outputs(completions: list[Completion]) -> list[tuple[list[int], str, str, int]]:
    return [(one.token_ids, one.text, one.finish_reason, one.prompt_tokens) for one in completions]


@installed
def test_greedy_output_is_that_of_our_engine(ours: AutoregressiveLLM, theirs: LlamaCppLLM) -> None:
    assert outputs(answers(theirs)) == outputs(answers(ours))


@installed
def test_half_floats_hold_the_embedded_weights_well_enough(ours: AutoregressiveLLM) -> None:
    with (
        LlamaCppLLM(str(EDGE), gguf_type="f16", threads=1) as half,
        AutoregressiveLLM(str(EDGE), dtype="float32") as edge,
    ):
        assert outputs(answers(half)) == outputs(answers(edge))


@installed
def test_a_long_prompt_takes_several_batches(theirs: LlamaCppLLM, ours: AutoregressiveLLM) -> None:
    messages = chat(" ".join(f"word {i}" for i in range(300)))
    one, other = theirs.generate(messages, SAMPLING), ours.generate(messages, SAMPLING)
    assert one.prompt_tokens > 2 * 512
    assert one.token_ids == other.token_ids


@installed
def test_prompt_lookup_changes_nothing_and_counts_what_it_verified(theirs: LlamaCppLLM) -> None:
    with LlamaCppLLM(str(CLOUD), gguf_type="f32", threads=1, prompt_lookup=6) as lookup:
        plain, drafted = answers(theirs), answers(lookup)
    assert outputs(drafted) == outputs(plain)
    steps = [step for one in drafted for step in one.trace.steps]
    assert max(step.drafted for step in steps) == 6
    assert sum(step.accepted for step in steps) > 0
    assert all(step.verified == step.drafted + 1 and step.accepted <= step.drafted for step in steps)
    for one in drafted:
        assert sum(step.emitted for step in one.trace.steps) + 1 == one.completion_tokens
    assert all(step.drafted == 0 for one in plain for step in one.trace.steps)


@installed
def test_sampling_is_that_of_our_engine_seed_for_seed(ours: AutoregressiveLLM, theirs: LlamaCppLLM) -> None:
    sampling = Sampling(max_tokens=24, temperature=1.5, top_p=0.98, top_k=40, repetition_penalty=1.1, seed=5)
    sampled = answers(theirs, sampling)
    assert outputs(sampled) == outputs(answers(ours, sampling))
    assert outputs(sampled) != outputs(answers(theirs, replace(sampling, seed=6)))


@installed
def test_coupled_sampling_with_drafts_says_what_it_says_without() -> None:
    sampling = Sampling(max_tokens=24, temperature=3.0, seed=5)
    said = []
    for drafted in (0, 6):
        with LlamaCppLLM(str(CLOUD), gguf_type="f32", threads=1, prompt_lookup=drafted, acceptance="coupled") as llm:
            said.append(answers(llm, sampling))
    assert outputs(said[0]) == outputs(said[1])
    assert sum(step.accepted for one in said[1] for step in one.trace.steps)


@installed
def test_stop_strings_end_the_output_as_in_our_engine(ours: AutoregressiveLLM, theirs: LlamaCppLLM) -> None:
    free = answers(theirs)[-1]
    stop = free.text[len(free.text) // 2 :][:4]
    sampling = Sampling(max_tokens=48, stop=(stop, "never"))
    stopped = answers(theirs, sampling)
    assert stopped[-1].text == free.text[: free.text.index(stop)]
    assert stopped[-1].finish_reason == "stop"
    assert stopped[-1].completion_tokens < free.completion_tokens
    assert outputs(stopped) == outputs(answers(ours, sampling))


@installed
def test_a_prompt_beyond_the_window_loses_its_oldest_tokens() -> None:
    messages = chat(" ".join(f"word {i}" for i in range(200)))
    with LlamaCppLLM(str(EDGE), gguf_type="f32", threads=1, n_ctx=256, truncate_prompts=True) as llm:
        one = llm.generate(messages, SAMPLING)
        assert one.prompt_tokens == 256 - SAMPLING.max_tokens


@installed
def test_a_file_answers_as_its_folder(theirs: LlamaCppLLM, tmp_path: Path) -> None:
    export_gguf(CLOUD, tmp_path / "cloud.gguf", "f32")
    conversation = [
        {"role": "system", "content": "Be brief."},
        *chat("Hello"),
        {"role": "assistant", "content": "Hello!"},
        *chat("Count to 5."),
    ]
    sampling = Sampling(max_tokens=48, stop=("\n",))
    with LlamaCppLLM(str(tmp_path / "cloud.gguf"), threads=1) as file:
        assert outputs(answers(file, sampling)) == outputs(answers(theirs, sampling))
        assert outputs([file.generate(conversation, SAMPLING)]) == outputs([theirs.generate(conversation, SAMPLING)])
        for number in (-1, 10**6, 2**70):
            with pytest.raises(PromptError, match="each from 0 to"):
                file.generate((1, number), SAMPLING)


@installed
def test_a_folder_is_exported_once_for_each_content_and_type(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    random_model(folder)

    def files() -> set[Path]:
        with LlamaCppLLM(str(folder), threads=1, gguf_type=kind):
            pass
        llm = LlamaCppLLM(str(folder), threads=1, gguf_type=kind)
        llm.load()
        llm.close()
        return set((cache / "ianvs-specdec" / "gguf").glob("model-*.gguf"))

    kind = "f32"
    first = files()
    stamps = {file: file.stat().st_mtime_ns for file in first}
    assert len(first) == 1
    assert {file: file.stat().st_mtime_ns for file in files()} == stamps
    kind = "q8_0"
    assert len(files()) == 2
    random_model(folder, num_hidden_layers=1)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert len(files()) == 3


@installed
def test_memory_is_weights_and_cache_and_close_frees_it(tmp_path: Path) -> None:
    llm = LlamaCppLLM(str(EDGE), gguf_type="f32", threads=1, n_ctx=1024)
    assert llm.memory() is None
    llm.load()
    weights = 4 * sum(tensor.numel() for tensor in load_file(EDGE / "model.safetensors").values())
    config = json.loads((EDGE / "config.json").read_text(encoding="utf-8"))
    cache = 1024 * config["num_hidden_layers"] * config["num_key_value_heads"] * 2 * config["head_dim"] * 4
    assert llm.memory() == weights + cache
    llm.close()
    assert llm.memory() is None
    assert llm.generate(PROMPTS[0], SAMPLING).token_ids
    llm.close()


@installed
def test_a_damaged_file_is_one_message(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF but not really")
    with pytest.raises(UserError, match=f"llama.cpp cannot load {path}: .+") as raised:
        LlamaCppLLM(str(path)).load()
    assert raised.value.key == "model"


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"gguf_type": "q4"}, "gguf_type", "unknown gguf_type 'q4'"),
        ({"n_ctx": 0}, "n_ctx", "n_ctx must be a whole number from 1, not 0"),
        ({"gpu_layers": 1.5}, "gpu_layers", "gpu_layers must be a whole number from -1"),
        ({"model": "no/such/model/folder"}, "model", "there is no model folder"),
        ({"model": "no.gguf"}, "model", "there is no file no.gguf"),
    ],
)
def test_wrong_options_are_told_before_anything_is_loaded(options: dict[str, Any], key: str, message: str) -> None:
    given = {"model": str(EDGE), "backend": "llamacpp", **options}
    with pytest.raises(UserError, match=message) as raised:
        CloudModel.check_hyperparameters(given)
    assert raised.value.key == key


def test_what_answers_depend_on_is_in_the_identity(tmp_path: Path) -> None:
    digests = FileDigests(tmp_path / "digests.json")

    def identity(**options: Any) -> dict[str, Any]:
        return LlamaCppLLM(str(EDGE), **options).identity(digests)

    variants = [{}, {"gguf_type": "f32"}, {"n_ctx": 64}, {"prompt_lookup": 3}, {"gpu_layers": 1}]
    assert len({json.dumps(identity(**options)) for options in variants}) == len(variants)
    assert LlamaCppLLM(str(EDGE), prompt_lookup=3).baseline_identity(digests) == identity()
    assert identity() != AutoregressiveLLM(str(EDGE)).identity(digests)


@installed
def test_a_job_compares_lookup_with_llama_cpp_token_by_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESULT_SAVED_URL", str(tmp_path / "workspace" / "job" / "algorithm"))
    monkeypatch.setenv("IANVS_RUN_ID", "run-1")
    question = {"query": "Count to 5.", "gold": "B", "index": 0}
    given = {"model": str(EDGE), "backend": "llamacpp", "threads": 1, "n_ctx": 512, "max_tokens": 24}
    turns = []
    for drafted in (0, 6):
        model = CloudModel(**given, prompt_lookup=drafted)
        turns += model.inference(question)["turns"]
        model.cleanup()
    plain, lookup = turns
    assert lookup["baseline"]["key"] == plain["key"] != lookup["key"]
    assert lookup["baseline"]["identical"] is True
    assert lookup["baseline"]["latency"] == pytest.approx(plain["trace"]["chunks"][-1][0])
    assert lookup["token_ids"] == plain["token_ids"]
    exported = list((tmp_path / "workspace" / "job" / "gguf").glob("*.gguf"))
    assert [file.name.startswith("edge-") for file in exported] == [True]


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    from ianvs_specdec.backends.llamacpp import model as llamacpp_model

    llamacpp_model.binding.cache_clear()
    with pytest.raises(UserError, match=r"pip install .*'llama-cpp-python>=") as raised:
        LlamaCppLLM(str(EDGE)).load()
    assert raised.value.key == "backend"
