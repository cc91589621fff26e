"""What answers come to: forms in which models write them, thoughts among them, with what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.benchmarks.judge_prompts import rating
from ianvs_specdec.benchmarks.scorers import prediction
from tests.support.lines import rows_in

FORMS: list[dict[str, Any]] = rows_in(Path(__file__).parent / "recorded" / "forms.jsonl")
"""``kind``: a scorer, or ``rating`` and ``official rating`` for a judgment by our and FastChat's prompts."""


def found(kind: str, text: str) -> str | None:
    if not kind.endswith("rating"):
        return prediction(kind, ["The answer is J, 99.", text])
    value = rating(text, official=kind == "official rating")
    return None if value is None else f"{value:g}"


@pytest.mark.parametrize("kind", ["choice", "number", "rating", "official rating", "text"])
def test_what_is_right(kind: str) -> None:
    texts = {row["text"]: row["right"] for row in FORMS if row["kind"] == kind}
    assert len(texts) >= 15
    assert {text: found(kind, text) for text in texts} == texts


LONG = ("A, ", "A项的", "not the ", "`<think>", "*", "(", "answer ", "\n", "1", "1,", "- ", "1/", "$")


@pytest.mark.parametrize("text", [part * 20_000 for part in LONG], ids=LONG)
def test_long_texts_do_not_take_long(text: str) -> None:
    for kind in ("choice", "number", "rating", "text"):
        found(kind, text)
