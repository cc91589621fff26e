"""``ianvs check`` reports rows that a model's chat template refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.harness import Workplace
from tests.support.models import build_model

STRICT = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)
FIRST_TURN = "{% macro m() %}{% endmacro %}{% if messages[1:] %}{{ raise_exception('one turn only') }}{% endif %}<a>"
ROWS = [
    {"question": "x", "answer": "A"},
    {"question": {"turns": ["x"], "system": "Be brief."}, "answer": "A"},
    {"question": {"turns": ["x"], "system": "Be quick."}, "answer": "A"},
    {"question": {"turns": ["x", "y"], "scorer": "none"}, "answer": ""},
]


@pytest.mark.slow
@pytest.mark.parametrize(("template", "line", "words"), [(STRICT, 2, "System role"), (FIRST_TURN, 2, "one turn only")])
def test_refused_rows_are_reported(workplace: Workplace, tmp_path: Path, template: str, line: int, words: str) -> None:
    model = build_model(tmp_path / "m", chat_template=template)
    for side in ("edge", "cloud"):
        workplace.settings(side, model=str(model), chat_template_kwargs={"enable_thinking": False})
    workplace.data(ROWS)
    outcome = workplace.ianvs("check", cold=True)
    assert outcome.code == 2, outcome.output
    told = outcome.lines(words)
    assert told[0].startswith(f"ianvs: {workplace.root / 'questions.jsonl'}:{line}: model {model}: ")
    assert len(outcome.lines("never reads enable_thinking")) == 1
    for side in ("edge", "cloud"):
        workplace.settings(side, max_failures=2)
    outcome = workplace.ianvs("check")
    assert outcome.code == 0, outcome.output
    assert words in outcome.output
