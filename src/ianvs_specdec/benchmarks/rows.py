"""From a row of an Ianvs data file to a Query.

A question is a string (one turn), or an object ``{"turns": [...], "id", "group", "scorer", "system", "prediction",
"temperature"}`` of which only ``turns`` is mandatory; ``prediction`` holds one text per turn that the answer is
expected to repeat ("" = none), ``temperature`` replaces the model's. An answer is a string, or an object as the row's
scorer wants it, such as ``{"references": [one per turn]}`` for open-ended questions. ``own_form`` makes these of rows
as the Hugging Face hub has them.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ianvs_specdec.benchmarks.files import are_texts, is_id, is_number, is_text, is_whole
from ianvs_specdec.benchmarks.letters import LETTERS, options_of
from ianvs_specdec.benchmarks.scorers import CHOICES, SCORERS
from ianvs_specdec.common.errors import UserError, unknown, warn_once
from ianvs_specdec.common.sampling import MIN_TEMPERATURE
from ianvs_specdec.common.types import Query

FIELDS = ("turns", "id", "group", "scorer", "system", "prediction", "temperature")
OPTIONS = ("choices", "options")
LINE = ("question", "answer", "answerKey")
BESIDE = (*FIELDS, *OPTIONS, *LETTERS, "subject", "prompt", "messages", "context")
"""Names like these, beside a question, are taken for its fields, known or not."""
_MARKED = re.compile(r"[(\[]?\s*(\w+)\s*(?:[)\].:]\D.*|[)\].:]*)", re.DOTALL)


def own_form(question: Any, answer: Any = None, where: str = "the question") -> tuple[Any, Any]:
    """Question and answer as ``parsed`` and the scorers take them, of a question or its whole row. Raises UserError,
    with ``where`` at the beginning, for invalid options."""
    fields, answer = _fields(question, answer, where)
    if not isinstance(fields, dict):
        return fields, answer
    columns = {letter: fields.pop(letter) for letter in LETTERS if letter in fields}
    given = [(repr(name), fields.pop(name)) for name in OPTIONS if name in fields]
    given += [(", ".join(columns), columns)] * bool(columns)
    turns: Any = fields.get("turns")
    if given:
        name, value = given[0]
        labels, texts = listed(value, f"{where}: {name}")
        if len(given) > 1 or not are_texts(texts):
            raise UserError(f"{where}: {name} must hold the only options, as texts, not {texts!r:.80}")
        turns = asked(turns, texts) if are_texts(turns) else turns
        return {"scorer": "choice", **fields, "turns": turns}, chosen(answer, labels, texts) or answer
    if fields.get("scorer", "choice") in CHOICES and are_texts(turns):
        letters = options_of(turns[-1]) or LETTERS * ("scorer" in fields)
        letter = chosen(answer, letters, letters)
        if letters and letter is None and (is_whole(answer) or len(str(answer).strip("()[].: ")) == 1):
            # It cannot be the answer itself, so it is to be refused.
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
    beside = {name: value for name, value in row.items() if name not in LINE and _belongs(name)}
    if twice := [name for name in beside if name in fields]:
        raise UserError(f"{where} has {twice[0]!r} twice: inside and outside the question")
    if "subject" in beside:
        beside.setdefault("group", beside.pop("subject"))
    return {**fields, **beside}, answer


@functools.cache
def _belongs(name: str) -> bool:
    """Whether a column of this name is a field of the question. Other names are reported once."""
    if not (like := difflib.get_close_matches(name, BESIDE, 1, 0.81)):  # idx is not id
        warn_once(f"a field of data rows that is not read: {name}")
    return bool(like)


def listed(value: Any, where: str) -> tuple[list[str], list[Any]]:
    """Labels (letters where there are none) and texts of options: a list of texts, ``{"text": [...], "label": [...]}``,
    or a mapping from labels to texts."""
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


def asked(turns: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The turns, with the options below the last."""
    shown = "".join(f"\n{letter}. {text}" for letter, text in zip(LETTERS, texts, strict=False))
    return [*turns[:-1], f"{turns[-1]}{shown}\nAnswer:"]


def chosen(answer: Any, labels: Sequence[str], texts: Sequence[str]) -> str | None:
    """The letter of the option that an answer names: the first reading of it that fits exactly one."""
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
    """The query of a row. Raises UserError, naming the row where ``index`` (from 0) is given."""
    where = "a question" if index is None else f"the question of data row {index + 1}"
    return parsed(question, gold, "" if index is None else str(index), where)


def parsed(question: Any, gold: Any, identifier: str, where: str) -> Query:
    """The query of a row, called ``identifier`` unless it has an id. Raises UserError that begins with ``where``."""
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
    """A row as the dataset processor made it, with its ``parsed`` query: everyone who is handed the row asks for it."""

    parsed: Query


def row_of(data: Any) -> Any:
    """What a dataset processor made of a row; routers of a cascade get the edge's response, which has it."""
    return getattr(data, "row", data)


def query_of_row(data: Any) -> Query:
    """The query of a row of the dataset processor or of the data file, or of a response."""
    data = row_of(data)
    if isinstance(data, Row):
        return data.parsed
    if isinstance(data, Mapping) and "query" in data:
        return query_of(data["query"], data.get("gold"), data.get("index"))
    return query_of(*own_form(data))
