"""From a row of an Ianvs data file to a Query.

A question is a string (one turn), or an object ``{"turns": [...], "id", "group", "scorer", "system", "prediction",
"temperature"}`` of which only ``turns`` is mandatory; ``prediction`` holds one text per turn that the answer is
expected to repeat ("" = none), ``temperature`` replaces the model's. An answer is a string, or an object as the row's
scorer wants it, such as ``{"references": [one per turn]}`` for open-ended questions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ianvs_specdec.benchmarks.files import is_id, is_number, is_text
from ianvs_specdec.benchmarks.letters import LETTERS
from ianvs_specdec.benchmarks.scorers import SCORERS
from ianvs_specdec.errors import UserError, unknown
from ianvs_specdec.sampling import COLDEST
from ianvs_specdec.types import Query

FIELDS = ("turns", "id", "group", "scorer", "system", "prediction", "temperature")


def query_of(question: Any, gold: Any = None, index: int | None = None) -> Query:
    """The query of a row. Raises UserError, naming the row where ``index`` (from 0) is given."""
    where = "a question" if index is None else f"the question of data row {index + 1}"
    return parsed(question, gold, "" if index is None else str(index), where)


def parsed(question: Any, gold: Any, identifier: str, where: str) -> Query:
    """The query of a row that is called ``identifier`` unless it has an id of its own. Raises UserError, with
    ``where`` at the beginning of the message.
    """
    default = "choice" if isinstance(gold, str) and len(gold) == 1 and gold in LETTERS else "text"
    if isinstance(question, str):
        question = {"turns": [str(question)]}
    if not isinstance(question, Mapping):
        raise UserError(f"{where} must be a string or an object with 'turns', not {type(question).__name__}")
    for field in question:
        if field not in FIELDS:
            raise UserError(f"{where}: {unknown('field', field, FIELDS)}")
    turns = question.get("turns")
    if not isinstance(turns, (list, tuple)) or not turns or not all(isinstance(turn, str) for turn in turns):
        raise UserError(f"{where}: 'turns' must be a list of at least one string, not {turns!r:.80}")
    scorer = question.get("scorer", default)
    if not isinstance(scorer, str) or scorer not in SCORERS:
        raise UserError(f"{where}: {unknown('scorer', scorer, SCORERS)}")
    for name in ("id", "group"):
        if not is_id(question.get(name, "")):
            raise UserError(f"{where}: {name!r} must be a text or a whole number, not {question[name]!r:.80}")
    if not is_text(question.get("system", "")):
        raise UserError(f"{where}: 'system' must be a text, not {question['system']!r:.80}")
    prediction = question.get("prediction") or ()
    if not isinstance(prediction, (list, tuple)) or not all(isinstance(text, str) for text in prediction):
        raise UserError(f"{where}: 'prediction' must be a list of strings, one for each turn")
    if len(prediction) not in (0, len(turns)):
        raise UserError(f"{where}: {len(prediction)} texts in 'prediction' for {len(turns)} turns")
    temperature = question.get("temperature")
    if temperature is not None and not (is_number(temperature) and (temperature == 0 or COLDEST <= temperature < 100)):
        raise UserError(f"{where}: 'temperature' must be a number from 0, not {temperature!r:.80}")
    return Query(
        turns=tuple(turns),
        id=str(question.get("id", identifier)),
        group=str(question.get("group", "")),
        scorer=scorer,
        system=str(question.get("system", "")),
        prediction=tuple(prediction),
        temperature=temperature,
    )


def row_of(data: Any) -> Any:
    """What a dataset processor made of a row. Where Ianvs decides after the edge has answered (inference-then-mining),
    routers are called with the edge's response in its place, which knows its row.
    """
    return getattr(data, "row", data)


def query_of_row(data: Any) -> Query:
    """The query of a row, or of a response: a row is a dict with ``query`` (and ``gold``, ``index``), or the bare
    question.
    """
    data = row_of(data)
    if isinstance(data, Mapping) and "query" in data:
        return query_of(data["query"], data.get("gold"), data.get("index"))
    return query_of(data)
