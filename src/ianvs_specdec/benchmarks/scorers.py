"""Scorers: the score of an answer in percent, or None. A row names its scorer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ianvs_specdec.benchmarks.code import code
from ianvs_specdec.benchmarks.extraction import extract_choice, extract_number, format_number
from ianvs_specdec.benchmarks.reasoning import without_reasoning
from ianvs_specdec.common.errors import optional_import, unknown


def choice(answers: Sequence[str], gold: Any) -> float | None:
    """100 if the last turn's answer chooses the gold letter, else 0."""
    letter = str(gold).strip()[:1]
    return 100.0 * (extract_choice(answers[-1]) == letter) if letter else None


def letter(answers: Sequence[str], gold: Any) -> float | None:
    """100 if the last turn's answer, replaced by the most probable letter, is the gold letter, else 0."""
    wanted = str(gold).strip()[:1]
    return 100.0 * (answers[-1].strip() == wanted) if wanted else None


def number(answers: Sequence[str], gold: Any) -> float | None:
    """100 if the last turn's answer gives the gold number, else 0."""
    value = extract_number(str(gold))
    return 100.0 * (extract_number(answers[-1]) == value) if value is not None else None


def text(answers: Sequence[str], gold: Any) -> float | None:
    """Mean chrF (Popovic 2015; sacrebleu's sentence score, 0-100) of the turns that have a reference."""
    scores = [
        _chrf().sentence_score(without_reasoning(answer), [reference]).score
        for answer, reference in zip(answers, references_of(gold), strict=False)
        if reference
    ]
    return sum(scores) / len(scores) if scores else None


LOGPROB = "choice_logprob"
CHOICES = ("choice", LOGPROB)
"""Scorers whose answer is the letter of an option."""

SCORERS: dict[str, Callable[[Sequence[str], Any], float | None]] = {
    "choice": choice,
    LOGPROB: letter,
    "number": number,
    "text": text,
    "judge": lambda answers, gold: None,
    "code": code,
    "none": lambda answers, gold: None,
}
"""Name -> scorer. ``workspace.scoring`` calls the judge, a model."""
EXTRACTED = (*CHOICES, "number")
"""Scorers that extract a letter or number, which an answer may lack."""


def scorer(name: str) -> Callable[[Sequence[str], Any], float | None]:
    """The scorer of this name: ``f(answers of all turns, row's answer) -> percentage or None``."""
    if name not in SCORERS:
        raise unknown("scorer", name, SCORERS)
    return SCORERS[name]


def prediction(scorer_name: str, answers: Sequence[str]) -> str | None:
    """The scored part of an answer: the chosen letter, the number, or the text without reasoning."""
    if scorer_name == "choice":
        return extract_choice(answers[-1])
    if scorer_name == LOGPROB:
        return answers[-1] or None
    if scorer_name == "number":
        value = extract_number(answers[-1])
        return None if value is None else format_number(value)
    return without_reasoning(answers[-1])


def references_of(gold: Any) -> Sequence[str]:
    """Reference answers, one per turn; there may be fewer than turns."""
    if isinstance(gold, Mapping):
        return list(gold.get("references") or ())
    return [str(gold)] if gold is not None and str(gold) else []


@functools.lru_cache(maxsize=1)
def _chrf() -> Any:
    with optional_import():
        from sacrebleu.metrics import CHRF

    return CHRF()
