"""Keys under which the journal holds answers: what computes and the contents of files are in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.backends import backend
from ianvs_specdec.backends.specdec import of_method
from ianvs_specdec.common.settings import Count, ExistingPath
from ianvs_specdec.drafters.options import DraftingOptions
from ianvs_specdec.records.identity import FileDigests


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("model", "head", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"name": name}))
    (tmp_path / "texts.datastore").write_text("texts")
    return tmp_path


def test_the_baseline_of_every_method_is_autoregressive_decoding(place: Path) -> None:
    digests = FileDigests(place / "digests.json")
    model, head, draft = (str(place / name) for name in ("model", "head", "draft"))
    plain = backend("autoregressive")(model).identity(digests)
    methods: dict[str, dict[str, Any]] = {
        "autoregressive": {},
        "specdec": {},
        "EagleSpecDec": {"head": head, "tree": "dynamic", "length": "fixed:7"},
        "DraftModelSpecDec": {"draft": draft, "branches": 2},
        "huggingface": {},
    }
    for name, options in methods.items():
        llm = backend(name)(model, **options)
        assert llm.baseline_identity(digests) == plain
        assert (llm.identity(digests) == plain) == (name in ("autoregressive", "specdec"))
    computed = {json.dumps(backend("PromptLookup")(model, engine=name).identity(digests)) for name in ("torch", "auto")}
    assert len(computed) == 2


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
