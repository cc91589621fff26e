"""Validation of the rows of a data file before a model runs, for example by ``ianvs check``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from ianvs_specdec.benchmarks import code
from ianvs_specdec.benchmarks.judge_prompts import REFERENCE_GROUPS, TURNS
from ianvs_specdec.benchmarks.letters import LETTERS, options_of
from ianvs_specdec.benchmarks.numbers import extract_number
from ianvs_specdec.benchmarks.rows import own_form, parsed
from ianvs_specdec.benchmarks.scorers import CHOICES, references_of
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.types import Query

DataRow = tuple[str, Any, Any]
"""Where a row stands, its question, or the whole row where that has more than the two, and its answer."""

SHOWN = 80
"""Characters of a long question's end that are shown, where its options are, and half of those of its beginning."""
_TEXT = "a text, a number, or an object with the list 'references'"


class Reader:
    """Reads rows one after the other. ``where`` makes the beginning of a message of a part (``question`` or ``answer``)
    and a place; ``judged``: whether a judge is set."""

    def __init__(self, where: Callable[[str, str], str], judged: bool) -> None:
        self._where, self._judged = where, judged
        self._places: dict[str, str] = {}
        self._numbers = count()

    def read(self, place: str, question: Any, answer: Any) -> tuple[Any, Any, Query]:
        """Question and answer in our own form, and the query. Raises UserError for an invalid row or a repeated id."""
        where = self._where("question", place)
        number = str(next(self._numbers))
        question, answer = own_form(question, answer, where)
        query = parsed(question, answer, number, where)
        _check_texts(query, where)
        _check_answer(query, answer, self._judged, self._where("answer", place))
        if query.id in self._places:
            raise UserError(f"{where}: the id {query.id!r} is a duplicate, first in {self._places[query.id]}")
        self._places[query.id] = place
        return question, answer, query

    def faults(self, rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
        """Place and reason of every row that cannot be read."""
        for row in rows:
            try:
                self.read(*row)
            except UserError as error:
                yield row[0], str(error)


def _check_texts(query: Query, where: str) -> None:
    """Raise UserError for a turn that asks nothing, and for half a character, which no tokenizer and no file takes."""
    for number, turn in enumerate(query.turns, start=1):
        if not any(character.isprintable() and not character.isspace() for character in turn):
            raise UserError(f"{where}: turn {number} of 'turns' is blank")
    for text in (*query.turns, query.id, query.group, query.system, *query.prediction):
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"\\u{ord(text[error.start]):04x}"
            raise UserError(f"{where}: half of a character, {half}, stands at character {error.start + 1}") from None


def _check_answer(query: Query, answer: Any, judged: bool, where: str) -> None:
    """Raise UserError where the row's scorer could make nothing of the answer, or could never find it given."""
    if query.scorer in CHOICES:
        _check_letter(query, answer, where)
    elif query.scorer == "number":
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or extract_number(str(answer)) is None:
            raise UserError(f"{where}: scorer number cannot read {answer!r:.80}: it needs a number")
    elif query.scorer == "text" or (query.scorer == "judge" and judged):
        _check_references(query, answer, where)
        if query.scorer == "judge":
            _check_judged(query, answer, where)
    elif query.scorer == "code" and not (
        isinstance(answer, Mapping) and all(isinstance(answer.get(name), str) for name in code.FIELDS)
    ):
        raise UserError(f"{where}: scorer code needs an object with the texts {', '.join(code.FIELDS)}")


def _check_letter(query: Query, answer: Any, where: str) -> None:
    letters = options_of(query.turns[-1]) or LETTERS
    span = f"{letters[0]} to {letters[-1]}"
    if not isinstance(answer, str) or answer not in list(LETTERS):
        near = str(answer).strip().upper()[:1]
        hint = f" Did you mean {near!r}?" if near and near in letters and isinstance(answer, str) else ""
        raise UserError(
            f"{where}: scorer {query.scorer} needs the letter of an option, {span}, not {answer!r:.80}.{hint}"
        )
    if answer not in letters:
        raise UserError(f"{where}: it is {answer!r}, but the question's options are {span}")


def _check_references(query: Query, answer: Any, where: str) -> None:
    if answer is None or isinstance(answer, (str, int, float)):
        return
    if not isinstance(answer, Mapping):
        raise UserError(f"{where}: scorer {query.scorer} needs {_TEXT}, not {answer!r:.80}")
    references = answer.get("references")
    if references is None and answer:
        raise UserError(f"{where}: {unknown('field', next(iter(answer)), ['references'])}")
    if not isinstance(references or [], list) or not all(isinstance(text, str) for text in references or ()):
        raise UserError(f"{where}: 'references' must be a list of texts, one for each turn, not {references!r:.80}")


def _check_judged(query: Query, answer: Any, where: str) -> None:
    if len(query.turns) > TURNS:
        raise UserError(f"{where}: scorer judge has prompts for {TURNS} turns, the question has {len(query.turns)}")
    given = sum(bool(text) for text in references_of(answer)[: len(query.turns)])
    if query.group in REFERENCE_GROUPS and given < len(query.turns):
        groups = ", ".join(REFERENCE_GROUPS)
        raise UserError(
            f"{where}: answers to {query.group} are judged against a reference for each turn (as all of {groups}), "
            "and there is none: convert the data with its reference answers, or set the scorer to none"
        )
