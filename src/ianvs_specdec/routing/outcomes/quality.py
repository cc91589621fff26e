"""How good answers are, from 0 to 1: by the benchmark's own scorer, or by their likeness to reference answers."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks import scorers
from ianvs_specdec.benchmarks.judge_prompts import HIGHEST, LOWEST
from ianvs_specdec.benchmarks.reasoning import without_reasoning
from ianvs_specdec.common.errors import UserError, install_command, unknown
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.recorded import Outcomes
from ianvs_specdec.workspace.scoring import BATCH_SCORERS

Answers = Sequence[str]
"""One query's answers, turn by turn."""

Scores = list[float | None]

Likeness = Callable[[Sequence[tuple[str, str]]], Sequence[float]]
"""From pairs of answer and reference to how alike they are, from 0 to 1."""

SEQ2SEQ = "seq2seq"
NAMES = ("benchmark", "chrf", "rouge-l", f"{SEQ2SEQ}:FOLDER")


class Quality(ABC):
    """Scores the answers to queries. What stands in the rows' answers (``golds``) is what it compares with."""

    @abstractmethod
    def check(self, query: Query, gold: Any, where: str) -> None:
        """Raise UserError if an answer to this query could not be scored. No model has been asked yet."""

    @abstractmethod
    def __call__(self, queries: Sequence[Query], answers: Sequence[Answers], golds: Sequence[Any]) -> Scores:
        """The quality of each query's answers, from 0 to 1; None where there is none."""


class BenchmarkQuality(Quality):
    """The scorer that each row names: percentages are shares, a judge's 1 to 10 becomes 0 to 1."""

    def check(self, query: Query, gold: Any, where: str) -> None:
        lack = {
            "judge": "" if _has(gold, "judge") else "names no judge: give --scorer-set judge_model=NAME",
            "code": "" if _has(gold, "run") else "must be permitted to run programs: give --scorer-set run_code=true",
            "none": "compares with nothing: name another one in the row, or choose another --quality",
        }.get(query.scorer)
        if lack is None and scorers.scorer(query.scorer)([""] * len(query.turns), gold) is None:
            lack = f"can make nothing of the row's answer {str(gold)[:40]!r}"
        if lack:
            raise UserError(f"{where}: its scorer {query.scorer} {lack}")

    def __call__(self, queries: Sequence[Query], answers: Sequence[Answers], golds: Sequence[Any]) -> Scores:
        found: list[float | None] = [None] * len(queries)
        for name in dict.fromkeys(query.scorer for query in queries):
            places = [place for place, query in enumerate(queries) if query.scorer == name]
            pairs = [(answers[place], golds[place]) for place in places]
            one = scorers.scorer(name)
            values = BATCH_SCORERS[name](pairs) if name in BATCH_SCORERS else [one(*pair) for pair in pairs]
            for place, value in zip(places, values, strict=True):
                found[place] = share(name, value)
        return found


def share(scorer: str, score: float | None) -> float | None:
    """A scorer's score on the scale from 0 to 1; None for one that is undefined."""
    if score is None or math.isnan(score):
        return None
    low, high = (LOWEST, HIGHEST) if scorer == "judge" else (0.0, 100.0)
    return min(1.0, max(0.0, (score - low) / (high - low)))


def _has(gold: Any, key: str) -> bool:
    return isinstance(gold, Mapping) and bool(gold.get(key))


class ReferenceQuality(Quality):
    """The mean over the turns that have a reference. ``likeness`` compares answers with references, pair by pair."""

    def __init__(self, likeness: Likeness) -> None:
        self._likeness = likeness

    def check(self, query: Query, gold: Any, where: str) -> None:
        if query.scorer in scorers.CHOICES:
            raise UserError(f"{where}: its answer is a letter, no text to compare with: use --quality benchmark")
        if not any(scorers.references_of(gold)[: len(query.turns)]):
            wanted = '{"references": [one per turn]}, or a text'
            raise UserError(f"{where}: it has no reference answer to compare with; its answer should be {wanted}")

    def __call__(self, queries: Sequence[Query], answers: Sequence[Answers], golds: Sequence[Any]) -> Scores:
        pairs, owners = [], []
        for place, (given, gold) in enumerate(zip(answers, golds, strict=True)):
            for answer, reference in zip(given, scorers.references_of(gold), strict=False):
                if reference:
                    pairs.append((without_reasoning(answer), reference))
                    owners.append(place)
        by_query: dict[int, list[float]] = {}
        for place, value in zip(owners, self._likeness(pairs), strict=True):
            by_query.setdefault(place, []).append(float(value))
        means = {place: sum(values) / len(values) for place, values in by_query.items()}
        return [means.get(place) if math.isfinite(means.get(place, 0.0)) else None for place in range(len(queries))]


def _chrf() -> Likeness:
    """Character n-gram F-score (Popovic 2015; sacrebleu)."""
    return lambda pairs: [share("text", scorers.text([answer], reference)) or 0.0 for answer, reference in pairs]


def _rouge_l() -> Likeness:
    """F-measure of the longest common subsequence of words (Lin 2004; rouge-score)."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise UserError(f"--quality rouge-l needs rouge-score: {install_command('rouge')}") from error
    scorer = RougeScorer(["rougeL"], tokenizer=_Words())
    return lambda pairs: [scorer.score(reference, answer)["rougeL"].fmeasure for answer, reference in pairs]


class _Words:
    """Words in small letters, ideographs one by one. The package's own tokenizer drops all letters but a to z."""

    _WORD = re.compile(r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+")

    def tokenize(self, text: str) -> list[str]:
        return self._WORD.findall(text.lower())


LIKENESSES: dict[str, Callable[[], Likeness]] = {"chrf": _chrf, "rouge-l": _rouge_l}


def quality(name: str = "benchmark") -> Quality:
    """The quality scorer of this name. Raises UserError for an unknown one, a missing package or model folder."""
    if name == "benchmark":
        return BenchmarkQuality()
    kind, _, folder = name.partition(":")
    if kind == SEQ2SEQ:
        from ianvs_specdec.routing.outcomes.seq2seq import Seq2SeqLikelihood

        return ReferenceQuality(Seq2SeqLikelihood(Path(folder)))
    if name not in LIKENESSES:
        raise unknown("quality scorer", name, NAMES)
    return ReferenceQuality(LIKENESSES[name]())


Given = Sequence[Sequence[tuple[Answers, float | None]]]
"""By query the texts and the cost of one or more answers: the first is that of the model, the others are samples."""


def outcomes_of_answers(
    queries: Sequence[Query], golds: Sequence[Any], sides: Mapping[str, Given], quality: Quality
) -> Outcomes:
    """The outcomes of the queries whose answers all have a score. ``sides``: ``edge`` and ``cloud``."""
    columns: dict[str, Any] = {}
    scored = np.ones(len(queries), dtype=bool)
    for name, answers in sides.items():
        each = len(answers[0])
        # All at once: a judge is asked many at a time.
        repeated = [(query, gold) for query, gold in zip(queries, golds, strict=True) for _ in range(each)]
        texts = [given for query in answers for given, _ in query]
        found = quality([query for query, _ in repeated], texts, [gold for _, gold in repeated])
        scored &= np.array([None not in found[start : start + each] for start in range(0, len(found), each)])
        scores = np.array([np.nan if one is None else one for one in found]).reshape(len(queries), each)
        costs = [query[0][1] for query in answers]
        columns[name] = scores[:, 0]
        columns[f"{name}_cost"] = None if None in costs else np.array(costs, dtype=np.float64)
        columns[f"{name}_samples"] = tuple(map(tuple, scores[:, 1:].tolist())) if each > 1 else None
    return Outcomes(tuple(queries), **columns).take(scored)
