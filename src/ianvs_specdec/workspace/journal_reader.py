"""The journal as a report reads it: answers that no test case holds, and what went wrong with failed requests."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ianvs_specdec.common.types import Completion, Message, Query, Sampling, messages_of
from ianvs_specdec.records.configuration import prompt_id
from ianvs_specdec.records.database import FILE_NAME, Database
from ianvs_specdec.records.journal import decode_answer, value_of


class JournalReader:
    """The journal of one job, by configuration and prompt. Damaged entries are passed over, a missing file is empty."""

    def __init__(self, job: Path) -> None:
        self._database = Database(job / FILE_NAME)

    @functools.cached_property
    def _records(self) -> dict[str, dict[str, Any]]:
        """The configurations, those with most answers first."""
        rows = self._database.rows(
            "SELECT c.id, c.model, c.value FROM configurations c LEFT JOIN answers a ON a.configuration = c.id "
            "AND a.answer NOTNULL GROUP BY c.id ORDER BY count(DISTINCT a.prompt) DESC, c.rowid"
        )
        known = {name: {"model": model, "value": value_of(name, text)} for name, model, text in rows}
        return {name: record for name, record in known.items() if record["value"] is not None}

    def failures(self, side: str, error: str) -> list[tuple[float, str]] | None:
        """The attempts behind a query's error: pairs of seconds and what went wrong. None if they are not known."""
        query = "SELECT failures FROM answers WHERE side = ? AND error = ? ORDER BY id DESC LIMIT 1"
        for (text,) in self._database.rows(query, (side, error)):
            return [(seconds, what) for seconds, what in json.loads(text)]
        return None

    def configurations(self, hyperparameters: Mapping[str, Any]) -> list[str]:
        """The configurations with this model and sampling, those with most answers first; lossy ones are left out."""
        given = {key: hyperparameters[key] for key in Sampling.names() if hyperparameters.get(key) is not None}
        if isinstance(given.get("top_k"), Mapping):
            del given["top_k"]
        try:
            sampling = Sampling(**given)
        except (TypeError, ValueError):
            return []
        wanted, quantization = sampling.to_json(), _quantization(hyperparameters)
        # Unless it is set, the time that templates are told is the job's.
        own = () if sampling.template_time else ("template_time",)
        return self._where(
            hyperparameters.get("model"),
            lambda value: _told(value, own) == wanted and _quantization(value) == quantization,
        )

    def same_outputs(self, key: str) -> list[str]:
        """The configurations with the model and sampling of the answer with this key, most answers first, without lossy
        ones; none without such an answer."""
        query = "SELECT configuration FROM answers WHERE key = ? AND answer NOTNULL ORDER BY id DESC LIMIT 1"
        rows = self._database.rows(query, (bytes.fromhex(key),))
        known = self._records.get(rows[0][0]) if rows else None
        if known is None:
            return []
        drawn = _drawn(known["value"])
        return self._where(known["model"], lambda value: _drawn(value) == drawn)

    def _where(self, model: Any, chosen: Callable[[Mapping[str, Any]], bool]) -> list[str]:
        """The lossless configurations of this model whose value is ``chosen``, most answers first."""
        return [
            name
            for name, record in self._records.items()
            if record["model"] == model and chosen(record["value"]) and not _lossy(record["value"])
        ]

    def answers(self, query: Query, configurations: list[str]) -> list[Completion] | None:
        """The answers to all turns of a query by the first of the configurations that has them; None if none has."""
        for config in configurations:
            found: list[Completion] = []
            while len(found) < len(query.turns):
                answer = self._read(config, messages_of(query, [answer.text for answer in found]))
                if answer is None:
                    break
                found.append(answer)
            if len(found) == len(query.turns):
                return found
        return None

    def answer(self, model: str, messages: list[Message]) -> str | None:
        """What the model of this name has answered to these messages, in whatever configuration."""
        for config, record in self._records.items():
            if record["model"] == model and (found := self._read(config, messages)):
                return found.text
        return None

    def _read(self, config: str, messages: list[Message]) -> Completion | None:
        query = (
            "SELECT answer FROM answers WHERE prompt = ? AND configuration = ? AND answer NOTNULL "
            "ORDER BY id DESC LIMIT 1"
        )
        for (answer,) in self._database.rows(query, (prompt_id(messages), config)):
            try:
                return decode_answer(answer)
            except msgspec.DecodeError:
                return None
        return None


def _drawn(value: Mapping[str, Any]) -> dict[str, Any]:
    """What determines the text: sampling without ``logprobs``, and quantization."""
    return {**_told(value, ("logprobs",)), "quantization": _quantization(value)}


def _told(value: Mapping[str, Any], without: Sequence[str]) -> dict[str, Any]:
    sampling = value.get("sampling")
    return {name: told for name, told in sampling.items() if name not in without} if isinstance(sampling, dict) else {}


def _lossy(value: Mapping[str, Any]) -> bool:
    """Whether the model's own output is traded for speed. Back ends differ in where they say it."""
    options = value.get("options")
    return "typical" in (value.get("acceptance"), options.get("acceptance") if isinstance(options, dict) else None)


def _quantization(value: Mapping[str, Any]) -> str | None:
    told = value.get("quantization")
    return None if told in (None, "none") else str(told)
