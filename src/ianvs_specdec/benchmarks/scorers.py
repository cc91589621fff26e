"""Scorers: how good an answer is, in percent or as a judge rates it. A row names its scorer; None = no score."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ianvs_specdec.benchmarks.code import code
from ianvs_specdec.benchmarks.judge import judge
from ianvs_specdec.errors import unknown

LETTERS = "ABCDEFGHIJ"

_ONLY = re.compile(rf"[\s*_\"'(\[]*([{LETTERS}{LETTERS.lower()}])[\s*_\"')\].:,;]*")
_BOXED = re.compile(rf"\\boxed\{{\s*(?:\\text\{{)?\(?([{LETTERS}])\)?\}}?\s*\}}")
_STATED = re.compile(
    rf"(?i:\b(?:answer|option|choice)\b)(?i:\s+(?:is|was|would\s+be|should\s+be|must\s+be))?[\s:=*_\"'(\[]*"
    rf"(?i:(?:option|choice)\s+)?[*_\"'(\[]*([{LETTERS}])(?![\w'])(?!\s+[a-z])"
)
_LEADING = re.compile(rf"\s*[*_\"'(\[]*([{LETTERS}])[*_\"']*[).:\]]")
# "A" and "I" are words; standing free they count as letters only before punctuation or at the end.
_FREE = re.compile(
    rf"(?<![\w'])(?:([{LETTERS.replace('A', '').replace('I', '')}])(?![\w'])|([AI])(?=\s*(?:[).:,;\]]|$)))"
)


def extract_choice(text: str) -> str | None:
    """The option letter that a free-form answer chooses; None if it does not commit itself to one.

    In order: the whole text is a letter ("B", "(B)", "B."); a boxed letter; the last stated answer ("The answer is B");
    a leading label ("B) because ..."); a single letter standing free anywhere.
    """
    if whole := _ONLY.fullmatch(text):
        return whole.group(1).upper()
    for pattern in (_BOXED, _STATED):
        if found := pattern.findall(text):
            return str(found[-1])
    if leading := _LEADING.match(text):
        return leading.group(1)
    free = {first or second for first, second in _FREE.findall(text)}
    return free.pop() if len(free) == 1 else None


def choice(answers: Sequence[str], gold: Any) -> float | None:
    """100 if the last turn's answer chooses the gold letter, else 0."""
    letter = str(gold).strip()[:1]
    return 100.0 * (extract_choice(answers[-1]) == letter) if letter else None


def text(answers: Sequence[str], gold: Any) -> float | None:
    """Mean chrF (Popovic 2015; sacrebleu's sentence score, 0-100) of the turns that have a reference."""
    scores = [
        _chrf().sentence_score(answer, [reference]).score
        for answer, reference in zip(answers, references_of(gold), strict=False)
        if reference
    ]
    return sum(scores) / len(scores) if scores else None


def none(answers: Sequence[str], gold: Any) -> float | None:
    """Nothing to compare with."""
    return None


SCORERS: dict[str, Callable[[Sequence[str], Any], float | None]] = {
    "choice": choice,
    "text": text,
    "judge": judge,
    "code": code,
    "none": none,
}


def scorer(name: str) -> Callable[[Sequence[str], Any], float | None]:
    """The scorer of this name. It takes the answers of all turns and the row's answer, and gives a percentage
    (``judge``: 1 to 10) or None.
    """
    if name not in SCORERS:
        raise unknown("scorer", name, SCORERS)
    return SCORERS[name]


def prediction(scorer_name: str, answers: Sequence[str]) -> str | None:
    """What the scorer looks at: the chosen letter, or the last answer."""
    return extract_choice(answers[-1]) if scorer_name == "choice" else answers[-1]


def references_of(gold: Any) -> Sequence[str]:
    """The reference answers, one per turn; may be shorter than the turns."""
    if isinstance(gold, Mapping):
        return list(gold.get("references") or ())
    return [str(gold)] if gold is not None and str(gold) else []


@functools.lru_cache(maxsize=1)
def _chrf() -> Any:
    from sacrebleu.metrics import CHRF

    return CHRF()
