"""Rewordings change how a question is written, and nothing of what it asks."""

from __future__ import annotations

import pytest

from ianvs_specdec.benchmarks.extraction import options_of
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation.rewording import KINDS, reword

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
def test_code_numbers_and_letters_stay(kind: str, seed: int) -> None:
    for text in TEXTS:
        changed = reworded(text, kind, seed)
        assert changed != text or (kind == "options" and text != CHOICE)
        assert [kept for kept in KEPT if kept in changed] == [kept for kept in KEPT if kept in text]
        assert options_of(changed) == options_of(text)
        assert changed == reworded(text, kind, seed)
    assert len({reworded(CHOICE, kind, other) for other in range(30)}) > 1


@pytest.mark.parametrize("seed", range(6))
def test_each_kind_changes_only_what_its_name_says(seed: int) -> None:
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
def test_a_question_with_an_option_that_names_others_is_left_out(option: str) -> None:
    assert reworded(CHOICE.replace("Bern", option), "options") == CHOICE.replace("Bern", option)
    plain = CHOICE.replace("Bern", "A better, all-day bus")
    assert reworded(plain, "options") != plain


@pytest.mark.parametrize("behind", ["\nof the Swiss\nAnswer:", "\nof the Swiss", "\n\nB. is not so.", "\nA. B.:"])
def test_a_question_goes_on_behind_its_options(behind: str) -> None:
    assert reworded(CHOICE + behind, "options") == CHOICE + behind
    assert reworded(f"{CHOICE}\n\nThe answer is:", "options") != f"{CHOICE}\n\nThe answer is:"


def test_a_long_word_takes_no_longer_than_many() -> None:
    # A quarter of an hour, if every letter began a search of its own.
    assert len(reworded("x" * 300_000, "case")) == 300_000


def test_bare_code_is_not_reworded() -> None:
    assert not any(reword([Query(("def foo(items):\n    '''The first Item.'''",), scorer="code")], 0).values())
