"""Rewordings of questions, and the robustness of routers to them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ianvs_specdec.benchmarks.extraction import options_of
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation.rewording import KINDS, reword
from ianvs_specdec.routing.evaluation.robustness import robustness
from ianvs_specdec.routing.outcomes.recorded import Floats

CHOICE = "Which city has 3,500 Inhabitants near the river?\nA. Rome\nB. Oslo\nC. Paris\nD. Bern"
CODE = "Complete this function please.\n\n```python\ndef foo(items):\n    return   items[0]\n```\nUse `foo(x)`."
MATH = "Natalia sold 48 clips to friends at example.org/a?b=1, then 2.5 times as many, \\Delta more. What was left?"
TEXTS = (CHOICE, CODE, MATH)
KEPT = ("3,500", "```python\ndef foo(items):\n    return   items[0]\n```", "`foo(x)`", "48", "2.5", "b=1", "\\Delta")


def reworded(text: str, kind: str, seed: int = 0, scorer: str = "text") -> str:
    found = reword([Query((text,), scorer=scorer)], seed)[kind]
    return found[0].turns[0] if found else text


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_code_numbers_and_letters_are_unchanged(kind: str, seed: int) -> None:
    for text in TEXTS:
        changed = reworded(text, kind, seed)
        assert changed != text or (kind == "options" and text != CHOICE)
        assert [kept for kept in KEPT if kept in changed] == [kept for kept in KEPT if kept in text]
        assert options_of(changed) == options_of(text)
        assert changed == reworded(text, kind, seed)
    assert len({reworded(CHOICE, kind, other) for other in range(30)}) > 1


@pytest.mark.parametrize("seed", range(6))
def test_each_kind_of_rewording(seed: int) -> None:
    for text in TEXTS:
        assert reworded(text, "case", seed).lower() == text.lower()
        assert reworded(text, "spaces", seed).split() == text.split()
        assert text in reworded(text, "politeness", seed)
        typed = reworded(text, "typos", seed)
        pairs = [(old, new) for old, new in zip(text, typed, strict=True) if old != new]
        assert 1 <= len(pairs) <= 2
        assert all(old + new in "qwertyuiop asdfghjkl zxcvbnm poiuytrewq lkjhgfdsa mnbvcxz" for old, new in pairs)
    assert typed.count("Natalia") == 1
    assert reworded(CHOICE, "typos", seed).partition("\n")[2] == CHOICE.partition("\n")[2]


@pytest.mark.parametrize(
    "option",
    [
        *("None of the Above", "All of these", "Neither", "Both A and C", "B only", "all are correct", "(A) or (C)"),
    ],
)
def test_options_that_refer_to_others_are_not_moved(option: str) -> None:
    assert reworded(CHOICE.replace("Bern", option), "options") == CHOICE.replace("Bern", option)
    plain = CHOICE.replace("Bern", "A better, all-day bus")
    assert reworded(plain, "options") != plain


@pytest.mark.parametrize("behind", ["\nof the Swiss\nAnswer:", "\nof the Swiss", "\n\nB. is not so.", "\nA. B.:"])
def test_options_before_more_text_are_not_moved(behind: str) -> None:
    assert reworded(CHOICE + behind, "options") == CHOICE + behind
    assert reworded(f"{CHOICE}\n\nThe answer is:", "options") != f"{CHOICE}\n\nThe answer is:"


def test_rewording_is_linear_in_long_words() -> None:
    # Takes 15 minutes if every letter starts a search.
    assert len(reworded("x" * 300_000, "case")) == 300_000


def test_bare_code_is_not_reworded() -> None:
    assert not any(reword([Query(("def foo(items):\n    '''The first Item.'''",), scorer="code")], 0).values())


def test_flips_and_changes_with_intervals() -> None:
    scores = np.array([0.2, 0.4, 0.6, 0.8] * 25)
    after = {"case": dict(enumerate(scores + 0.2)), "options": {0: 0.2, 3: 0.3}, "typos": {}}
    reworded = {kind: {place: Query((str(now),)) for place, now in of.items()} for kind, of in after.items()}

    def score(queries: Sequence[Query]) -> Floats:
        return np.array([float(query.turns[0]) for query in queries])

    found = robustness(scores, reworded, score, lambda given: (given >= 0.5).astype(np.intp), resamples=400, seed=0)
    values = {name: one.value for name, one in found.items()}
    expected = {"case": (25, 0.2), "options": (50, 0.25), "all": (26 / 1.02, 20.5 / 102)}
    for kind, numbers in expected.items():
        assert [values[f"{name}:{kind}"] for name in ("flips", "change")] == pytest.approx(numbers)
    # A share of 1/4 of 100 queries, by the bootstrap.
    assert found["flips:case"].low == pytest.approx(25 - 1.96 * np.sqrt(25 * 75 / 100), abs=1.5)
    assert found["flips:case"].high == pytest.approx(25 + 1.96 * np.sqrt(25 * 75 / 100), abs=1.5)
    assert not [name for name in found if name.endswith("typos")]
