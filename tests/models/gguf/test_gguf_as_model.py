"""GGUF files as models: imported once, identified by content, errors with the file name."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

from ianvs_specdec.backends.llamacpp.backend import LlamaCppLLM
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.models.gguf.cache import IMPORT_VERSION, import_folder, import_once
from ianvs_specdec.models.gguf.exporting import export_gguf
from ianvs_specdec.models.gguf.importing import import_gguf
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.records.identity import FileDigests
from tests.support.folders import EDGE, random_model
from tests.support.slow_cases import slow_unless

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed (extra gguf)")

SAMPLING = Sampling(max_tokens=24)
CHAT = [{"role": "user", "content": "Which is the capital of Graiplarland?\nA. Mitrar\nB. Haja\nAnswer:"}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def file(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with 8-bit weights, which no 16-bit type represents exactly."""
    path = tmp_path_factory.mktemp("gguf") / "edge.gguf"
    export_gguf(EDGE, path, "q8_0")
    return path


def engine(model: Path) -> Any:
    return engine_backend("autoregressive")(str(model), dtype="float32", device="cpu", threads=1)


def test_output_equals_that_of_transformers(file: Path, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(EDGE)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    reference = transformers.AutoModelForCausalLM.from_pretrained(EDGE, dtype=torch.float32)
    for weights in reference.parameters():
        if weights.dim() == 2:
            blocks = gguf.quantize(weights.detach().numpy(), gguf.GGMLQuantizationType.Q8_0)
            weights.data = torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType.Q8_0))
    expected = reference.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :].tolist()
    with engine(file) as llm:
        assert llm.generate(CHAT, SAMPLING).token_ids == expected
    stored = load_file(import_folder(file) / "model.safetensors")
    parameters = dict(reference.named_parameters())
    assert all(torch.equal(tensor.float(), parameters[name]) for name, tensor in stored.items())
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"prompt": ids}) + "\n")
    arguments = ["--prompts", str(prompts), "--out", str(out), "--max-new-tokens", "24", "--method", "prompt_lookup"]
    assert main(["decode", "--model", str(file), *arguments]) == 0
    assert json.loads(out.read_text())["output"] == ids + expected


ANSWERING = ("mixtral", "qwen3_moe", "olmoe", "llama3 scaling", "phi3 longrope")
FAST = {
    ("phi3 longrope", "q8_0"),
    ("mixtral", "q4_0"),
    ("olmoe", "q8_0"),
    ("qwen3_moe", "f32"),
    ("llama3 scaling", "q4_0"),
}


@pytest.mark.parametrize(
    ("family", "kind"), slow_unless(itertools.product(ANSWERING, ("f32", "q8_0", "q4_0")), FAST.__contains__)
)
def test_output_of_further_families_equals_transformers(family: str, kind: str, home: Path, tmp_path: Path) -> None:
    random_model(tmp_path / "there", family)
    export_gguf(tmp_path / "there", tmp_path / "m.gguf", "f32" if kind == "q4_0" else kind)
    if kind == "q4_0":
        quantize(tmp_path / "m.gguf", tmp_path / "m4.gguf")
    path = tmp_path / ("m4.gguf" if kind == "q4_0" else "m.gguf")
    with engine(path) as llm:
        answer = llm.generate(CHAT, Sampling(max_tokens=100, ignore_eos=True))
    folder = import_folder(path)
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    settings = {"max_new_tokens": 100, "min_new_tokens": 100, "do_sample": False, "eos_token_id": None}
    expected = reference.generate(torch.tensor([ids]), **settings)[0, len(ids) :].tolist()
    assert answer.token_ids == expected


def quantize(path: Path, out: Path, finer: tuple[str, ...] = ()) -> None:
    """Quantize all matrices except routers to q4_0, those with a name in ``finer`` to q8_0."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.get_field("general.architecture").contents())
    for key, field in reader.fields.items():
        if not key.startswith(("GGUF.", "general.architecture")):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[1] if field.types[1:] else None)
    for tensor in reader.tensors:
        plain = tensor.data.ndim == 1 or "ffn_gate_inp" in tensor.name
        name = "F32" if plain else "Q8_0" if any(part in tensor.name for part in finer) else "Q4_0"
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(tensor.name, gguf.quantize(tensor.data, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_type_of_most_weights_counts(tmp_path: Path) -> None:
    """Gemma 3 has many norms: in a file of mixed types more tensors are float32 than of any other type."""
    random_model(tmp_path / "there", "gemma3")
    export_gguf(tmp_path / "there", tmp_path / "m.gguf", "f32")
    quantize(tmp_path / "m.gguf", tmp_path / "mixed.gguf", finer=("attn_v", "ffn_down"))
    import_gguf(tmp_path / "mixed.gguf", tmp_path / "back")
    assert transformers.AutoConfig.from_pretrained(tmp_path / "back").dtype == torch.bfloat16


def test_draft_model(file: Path) -> None:
    with engine_backend("draft_model")(str(EDGE), draft=str(file), dtype="float32", threads=1) as llm:
        llm.check_files()
        answer = llm.generate(CHAT, SAMPLING)
    assert sum(step.accepted for step in answer.trace.steps) > 12


def test_a_file_is_imported_once_per_content(
    home: Path, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "only" / "model.gguf"
    model.parent.mkdir()
    model.write_bytes(file.read_bytes())
    own = hashlib.sha256(model.read_bytes()).hexdigest()
    message = f"{model}: importing into {home}"
    engine(model).check_files()
    assert capfd.readouterr().err.count(message) == 1
    for place in (model, model.parent):
        ModelSettings.parse({"model": str(place)}).check_files()
        known = engine(place).identity(FileDigests(None))["model"]
        assert known == engine(model).identity(FileDigests(None))["model"] != own
        assert LlamaCppLLM(str(place)).identity(FileDigests(None))["model"] == own
        with monkeypatch.context() as later:
            later.setattr("ianvs_specdec.backends.prompts.IMPORT_VERSION", IMPORT_VERSION + 1)
            assert engine(place).identity(FileDigests(None))["model"] != known
    assert message not in capfd.readouterr().err
    before, others = import_folder(model), set((home / "ianvs-specdec" / "models").iterdir())
    os.utime(model, (1, 1))
    engine(model).check_files()
    assert capfd.readouterr().err.count(message) == 1
    assert set((home / "ianvs-specdec" / "models").iterdir()) == others - {before} | {import_folder(model)}


def test_an_existing_import_in_a_read_only_cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = import_once(file)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    assert import_once(file) == folder


def test_invalid_files_are_refused_by_name(home: Path, file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    reader = gguf.GGUFReader(file)

    def place(part: Any) -> int:
        return int(part.ctypes.data - reader.data.ctypes.data)

    kind = place(reader.tensors[0].field.parts[4])
    rows = place(reader.tensors[0].field.parts[3])
    unknown_type = whole[:kind] + struct.pack("<I", 250) + whole[kind + 4 :]
    assert reader.tensors[0].name == "token_embd.weight"
    width, tokens = struct.unpack_from("<2Q", whole, rows)
    fewer_tokens = whole[:rows] + struct.pack("<2Q", width, tokens - 32) + whole[rows + 16 :]
    wrong = {
        "cut off": whole[:-1000],
        "unknown type": unknown_type,
        "vocabulary": fewer_tokens,
        "is not a GGUF file": b"PK" + whole[2:],
    }
    path = tmp_path / "model.gguf"
    for reason, content in wrong.items():
        path.write_bytes(content)
        with pytest.raises(UserError, match=reason) as caught:
            engine(path).check_files()
        assert (str(path) in str(caught.value), caught.value.key) == (True, "model")
    assert not any(path.suffix == ".tmp" for path in (home / "ianvs-specdec" / "models").iterdir())


@pytest.mark.parametrize(
    ("model", "reason"), [("none.gguf", "there is no file"), ("two", "holds 2 GGUF files: name one")]
)
def test_paths_without_exactly_one_file(model: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "two").mkdir()
    for name in "ab":
        (tmp_path / "two" / f"{name}.gguf").touch()
    with pytest.raises(UserError, match=reason):
        ModelSettings.parse({"model": str(tmp_path / model)})
