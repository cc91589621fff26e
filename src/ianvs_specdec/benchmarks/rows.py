"""Rows of an Ianvs data file: normalization, parsing to a ``Query``, validation.

A question is a string (one turn), or an object ``{"turns": [...], "id", "group", "scorer", "system", "prediction",
"temperature"}`` of which only ``turns`` is mandatory; ``prediction`` holds one text per turn that the answer is
expected to repeat ("" = none), ``temperature`` overrides the model's. An answer is a string, or an object for the row's
scorer, such as ``{"references": [one per turn]}`` for open-ended questions. ``normalize_row`` converts rows in the
layouts of the Hugging Face hub.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from ianvs_specdec.benchmarks import code
from ianvs_specdec.benchmarks.extraction import LETTERS, extract_number, options_of
from ianvs_specdec.benchmarks.files import are_texts, is_id, is_number, is_text, is_whole
from ianvs_specdec.benchmarks.judge_prompts import REFERENCE_GROUPS, TURNS
from ianvs_specdec.benchmarks.scorers import CHOICES, SCORERS, references_of
from ianvs_specdec.common.errors import UserError, unknown, warn_once
from ianvs_specdec.common.sampling import MIN_TEMPERATURE
from ianvs_specdec.common.types import Query

FIELDS = ("turns", "id", "group", "scorer", "system", "prediction", "temperature")
OPTIONS = ("choices", "options")
LINE = ("question", "answer", "answerKey")
ROW_FIELDS = (*FIELDS, *OPTIONS, *LETTERS, "subject", "prompt", "messages", "context")
"""Columns with names similar to these are taken as fields of the question, valid or not."""
DataRow = tuple[str, Any, Any]
"""Place of a row, its question (or the whole row if it has further fields), and its answer."""

SHOWN = 80
"""Characters shown of a long question's end, with its options; twice as many of its start."""
_TEXT = "a text, a number, or an object with the list 'references'"
_MARKED = re.compile(r"[(\[]?\s*(\w+)\s*(?:[)\].:]\D.*|[)\].:]*)", re.DOTALL)


def normalize_row(question: Any, answer: Any = None, where: str = "the question") -> tuple[Any, Any]:
    """Question and answer in the form that ``parse_query`` and the scorers take, from a question or its whole row.
    Raises UserError, which begins with ``where``, for invalid options."""
    fields, answer = _fields(question, answer, where)
    if not isinstance(fields, dict):
        return fields, answer
    columns = {letter: fields.pop(letter) for letter in LETTERS if letter in fields}
    given = [(repr(name), fields.pop(name)) for name in OPTIONS if name in fields]
    given += [(", ".join(columns), columns)] * bool(columns)
    turns: Any = fields.get("turns")
    if given:
        name, value = given[0]
        labels, texts = labels_and_texts(value, f"{where}: {name}")
        if len(given) > 1 or not are_texts(texts):
            raise UserError(f"{where}: {name} must hold the only options, as texts, not {texts!r:.80}")
        turns = with_options(turns, texts) if are_texts(turns) else turns
        return {"scorer": "choice", **fields, "turns": turns}, chosen_letter(answer, labels, texts) or answer
    if fields.get("scorer", "choice") in CHOICES and are_texts(turns):
        letters = options_of(turns[-1]) or LETTERS * ("scorer" in fields)
        letter = chosen_letter(answer, letters, letters)
        if letters and letter is None and (is_whole(answer) or len(str(answer).strip("()[].: ")) == 1):
            # A single character or index that is no option: scorer choice rejects it.
            return {"scorer": "choice", **fields}, answer
        answer = letter or answer
    return question if isinstance(question, str) else fields, answer


def _fields(question: Any, answer: Any, where: str) -> tuple[Any, Any]:
    """The fields of a question, or of its whole row, and the row's answer."""
    row = question if isinstance(question, Mapping) and "question" in question else {"question": question}
    question, answer = row["question"], row.get("answer", row.get("answerKey", answer))
    fields = {"turns": [str(question)]} if isinstance(question, str) else question
    if not isinstance(fields, Mapping):
        return question, answer
    columns = {name: value for name, value in row.items() if name not in LINE and _is_field(name)}
    if twice := [name for name in columns if name in fields]:
        raise UserError(f"{where} has {twice[0]!r} twice: inside and outside the question")
    if "subject" in columns:
        columns.setdefault("group", columns.pop("subject"))
    return {**fields, **columns}, answer


@functools.cache
def _is_field(name: str) -> bool:
    """Whether a column of this name is a field of the question. Warns about other names once."""
    if not (like := difflib.get_close_matches(name, ROW_FIELDS, 1, 0.81)):  # idx is not id
        warn_once(f"a field of data rows that is not read: {name}")
    return bool(like)


def labels_and_texts(value: Any, where: str) -> tuple[list[str], list[Any]]:
    """Labels (default: letters) and texts of options: a list of texts, ``{"text": [...], "label": [...]}``, or a
    mapping from labels to texts."""
    labels = None
    if isinstance(value, Mapping):
        labels, value = (value.get("label"), value["text"]) if "text" in value else (list(value), [*value.values()])
    if not isinstance(value, list):
        raise UserError(f"{where} must hold a list of texts, not {value!r:.80}")
    if not 2 <= len(value) <= len(LETTERS):
        raise UserError(f"{where}: {len(value)} options; there must be 2 to {len(LETTERS)}")
    labels = [str(label) for label in labels or LETTERS[: len(value)]]
    if len(set(labels)) < len(value) or len(labels) > len(value):
        raise UserError(f"{where}: {len(value)} options cannot have the labels {', '.join(labels):.80}")
    return labels, value


def with_options(turns: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The turns, with the options after the last."""
    shown = "".join(f"\n{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False))
    return [*turns[:-1], f"{turns[-1]}{shown}\nAnswer:"]


def chosen_letter(answer: Any, labels: Sequence[str], texts: Sequence[str]) -> str | None:
    """The letter of the option that an answer names, by the first reading that matches exactly one."""
    return next((LETTERS[read[0]] for read in _readings(answer, labels, texts) if len(read) == 1), None)


def _readings(answer: Any, labels: Sequence[str], texts: Sequence[str]) -> Iterator[list[int]]:
    said = str(answer).strip() if is_text(answer) or is_number(answer) else ""
    yield [place for place, label in enumerate(labels) if label == said]
    if is_whole(answer):
        yield [answer] if 0 <= answer < len(texts) else []
        return
    yield [place for place, text in enumerate(texts) if text.strip() == said]
    bare = found[1] if (found := _MARKED.fullmatch(said)) else said
    yield [place for place, label in enumerate(labels) if label == bare]
    yield [place for place, letter in enumerate(LETTERS[: len(texts)]) if letter == bare.upper()]
    yield [int(bare)] if bare.isdecimal() and int(bare) < len(texts) else []


def query_of(question: Any, gold: Any = None, index: int | None = None) -> Query:
    """The query of a row; ``index`` (from 0) names it in a UserError."""
    where = "a question" if index is None else f"the question of data row {index + 1}"
    return parse_query(question, gold, "" if index is None else str(index), where)


def parse_query(question: Any, gold: Any, identifier: str, where: str) -> Query:
    """The query of a row; ``identifier``: its default id. Raises UserError, which begins with ``where``."""
    if isinstance(question, str):
        question = {"turns": [str(question)]}
    if not isinstance(question, Mapping):
        raise UserError(f"{where} must be a string or an object with 'turns', not {type(question).__name__}")
    _check_fields(question, where)
    default = "choice" if isinstance(gold, str) and len(gold) == 1 and gold in LETTERS else "text"
    scorer = question.get("scorer", default)
    if not isinstance(scorer, str) or scorer not in SCORERS:
        raise UserError(f"{where}: {unknown('scorer', scorer, SCORERS)}")
    turns, prediction = tuple(question["turns"]), tuple(question.get("prediction") or ())
    if len(prediction) not in (0, len(turns)):
        raise UserError(f"{where}: {len(prediction)} texts in 'prediction' for {len(turns)} turns")
    return Query(
        turns=turns,
        id=str(question.get("id", identifier)),
        group=str(question.get("group", "")),
        scorer=scorer,
        system=str(question.get("system", "")),
        prediction=prediction,
        temperature=question.get("temperature"),
    )


def _check_fields(question: Mapping[str, Any], where: str) -> None:
    for field in question:
        if field not in FIELDS:
            raise UserError(f"{where}: {unknown('field', field, FIELDS)}")
    for field, (valid, wanted) in _WANTED.items():
        value = question.get(field)
        if (field in question or field == "turns") and not valid(value):
            raise UserError(f"{where}: {field!r} must be {wanted}, not {value!r:.80}")


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(text, str) for text in value)


def _is_temperature(value: Any) -> bool:
    return value is None or (is_number(value) and (value == 0 or MIN_TEMPERATURE <= value < 100))


_WANTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "turns": (lambda value: _is_list_of_texts(value) and len(value) > 0, "a list of at least one string"),
    "id": (is_id, "a text or a whole number"),
    "group": (is_id, "a text or a whole number"),
    "system": (is_text, "a text"),
    "prediction": (lambda value: not value or _is_list_of_texts(value), "a list of strings, one for each turn"),
    "temperature": (_is_temperature, "a number from 0"),
}


class Row(dict[str, Any]):
    """A row of the dataset processor, with its ``parsed`` query."""

    parsed: Query


def row_of(data: Any) -> Any:
    """The row of the dataset processor, also from the edge's response, which routers of a cascade get."""
    return getattr(data, "row", data)


def query_of_row(data: Any) -> Query:
    """The query of a row (of the dataset processor or the data file) or of a response."""
    data = row_of(data)
    if isinstance(data, Row):
        return data.parsed
    if isinstance(data, Mapping) and "query" in data:
        return query_of(data["query"], data.get("gold"), data.get("index"))
    return query_of(*normalize_row(data))


class RowReader:
    """Validates rows in order. ``where(part, place)``: start of an error message, ``part`` being ``question`` or
    ``answer``; ``judged``: whether a judge is set."""

    def __init__(self, where: Callable[[str, str], str], judged: bool) -> None:
        self._where, self._judged = where, judged
        self._places: dict[str, str] = {}
        self._numbers = count()

    def read(self, place: str, question: Any, answer: Any) -> tuple[Any, Any, Query]:
        """The normalized question and answer, and the query. Raises UserError for an invalid row or a duplicate id."""
        where = self._where("question", place)
        number = str(next(self._numbers))
        question, answer = normalize_row(question, answer, where)
        query = parse_query(question, answer, number, where)
        _check_texts(query, where)
        _check_answer(query, answer, self._judged, self._where("answer", place))
        if query.id in self._places:
            raise UserError(f"{where}: the id {query.id!r} is a duplicate, first in {self._places[query.id]}")
        self._places[query.id] = place
        return question, answer, query

    def faults(self, rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
        """Place and reason of every invalid row."""
        for row in rows:
            try:
                self.read(*row)
            except UserError as error:
                yield row[0], str(error)


def _check_texts(query: Query, where: str) -> None:
    """Raise UserError for a blank turn and for lone surrogates, which cannot be encoded."""
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
    """Raise UserError if the row's scorer cannot use the answer, or no output could match it."""
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
