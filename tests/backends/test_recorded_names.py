"""Keys under which journals hold answers: those of the first journals are found whatever things are called since."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.backends.specdec import of_method
from ianvs_specdec.common.settings import Count, ExistingPath
from ianvs_specdec.drafters.options import DraftingOptions
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.identity import FileDigests

PLAIN = "8770290918cbdb1466042dccfb7bd777141a040562163b9e46ad212c421ce7e8"
EAGLE = {"tree": "dynamic", "total_tokens": 26, "depth": 5, "eagle_topk": 4, "length": "fixed:7"}
KEYS: list[tuple[dict[str, Any], str, str]] = [
    ({"backend": "autoregressive"}, PLAIN, PLAIN),
    ({"backend": "specdec"}, PLAIN, PLAIN),  # its former name
    (
        {"backend": "EagleSpecDec", "head": "head", **EAGLE},
        "f6280ae78e229cdeae0ba2e513d4843c0db65138763bf5982307a1be967049ed",
        PLAIN,
    ),
    (
        {"backend": "DraftModelSpecDec", "draft": "draft", "branches": 2},
        "bb613e49a87f18808eecccb8d13923819ad06ecefa4934f77d20f505e6a43f0d",
        PLAIN,
    ),
    (
        {"backend": "huggingface", "dtype": "float32"},
        "cae6e86598097a1c82fca154579b0554e1520523a8703f1b4699614388ea320b",
        "fa0401ddf77473f64c36f76e7adfc6710d717634646b47ddb6731646ae94de11",
    ),
]
"""Settings, the key of their answers, and that of their baseline's."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("model", "head", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"name": name}))
    (tmp_path / "texts.datastore").write_text("texts")
    return tmp_path


@pytest.mark.parametrize(("given", "own", "baseline"), KEYS, ids=[case[0]["backend"] for case in KEYS])
def test_the_key_of_an_answer_is_what_it_was(place: Path, given: dict[str, Any], own: str, baseline: str) -> None:
    paths = {key: str(place / value) for key, value in given.items() if key in ("head", "draft")}
    engine = {} if given["backend"] == "huggingface" else {"engine": "torch"}
    settings = ModelSettings.parse({"model": str(place / "model"), **given, **paths, **engine})
    llm, digests = settings.llm(settings.backend), FileDigests(place / "digests.json")

    def key(identity: dict[str, Any] | None) -> str:
        configuration = Configuration("m", {**(identity or {}), "sampling": settings.sampling.to_json()})
        return configuration.key([{"role": "user", "content": "hello"}])

    assert (key(llm.identity(digests)), key(llm.baseline_identity(digests))) == (own, baseline)


def test_what_computes_is_in_the_key_where_an_answer_can_depend_on_it(place: Path) -> None:
    def identity(**options: Any) -> dict[str, Any]:
        return of_method("autoregressive")(str(place / "model"), **options).identity(
            FileDigests(place / "digests.json")
        )

    assert identity()["engine"] == "auto"
    assert identity(engine="native")["engine"] == "native"
    # What torch computed on a GPU is what it was.
    assert "engine" not in identity(engine="torch")
    assert "engine" not in identity(device="cuda")


class GlossaryOptions(DraftingOptions):
    glossary: ExistingPath
    words: Count


def test_the_contents_of_whatever_file_a_method_names_are_in_the_key(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = drafters.Method("somewhere:Glossary", "GlossarySpecDec", GlossaryOptions)
    monkeypatch.setitem(drafters.METHODS, "glossary", method)
    llm = of_method("glossary")(str(place / "model"), glossary=str(place / "texts.datastore"), words=3)

    def options() -> dict[str, Any]:
        return dict(llm.identity(FileDigests(place / "digests.json"))["options"])

    first = options()
    assert str(place) not in json.dumps(first)
    (place / "texts.datastore").rename(place / "texts.moved")
    (place / "texts.datastore").write_text("texts")
    assert options() == first
    (place / "texts.datastore").write_text("other texts")
    assert options() != first
    assert options()["words"] == 3
