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
from ianvs_specdec.records.identity import FileDigests


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("model", "head", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"name": name}))
    (tmp_path / "texts.datastore").write_text("texts")
    return tmp_path


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
