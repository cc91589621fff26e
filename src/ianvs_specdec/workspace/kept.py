"""The journal as a report reads it: answers that no test case holds, and what went wrong with failed requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.answers.configuration import prompt_id
from ianvs_specdec.answers.lines import (
    FILE_NAME,
    answer_in,
    failure_in,
    head_of,
    is_failure,
    record_in,
    record_of,
)
from ianvs_specdec.types import Completion, Message, Query, Sampling, messages_of


class KeptAnswers:
    """The journal of one job, by configuration and prompt. Damaged lines are passed over, a missing file is empty."""

    def __init__(self, job: Path) -> None:
        self._path = job / FILE_NAME
        self._places: dict[str, dict[str, tuple[int, int]]] = {}
        self._configuration_of: dict[str, str] = {}
        self._records: dict[str, dict[str, Any]] = {}
        self._failures: dict[tuple[str, str], list[tuple[float, str]]] = {}
        for line, offset, size in self._lines():
            if head := head_of(line):
                self._places.setdefault(head.config, {})[head.prompt] = (offset, size)
                self._configuration_of[head.key] = head.config
            elif is_failure(line):
                if failure := failure_in(line):
                    self._failures[failure[:2]] = failure[2]
            elif (found := record_of(line)) and found[0] == "config" and (record := record_in(line)):
                self._records[found[1]] = record

    def _lines(self) -> Iterator[tuple[bytes, int, int]]:
        offset = 0
        try:
            with self._path.open("rb") as file:
                for line in file:
                    yield line, offset, len(line)
                    offset += len(line)
        except OSError:
            return

    def failures(self, side: str, error: str) -> list[tuple[float, str]] | None:
        """The attempts behind a query's error: pairs of seconds and what went wrong. None if they are not known."""
        return self._failures.get((side, error))

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

    def alike(self, key: str) -> list[str]:
        """The configurations with the model and sampling of the one that gave the answer with this key, those with most
        answers first; lossy ones are left out, and so are all if there is no such answer.
        """
        known = self._records.get(self._configuration_of.get(key, ""))
        if known is None:
            return []
        drawn = _drawn(known["value"])
        return self._where(known.get("model"), lambda value: _drawn(value) == drawn)

    def _where(self, model: Any, chosen: Callable[[Mapping[str, Any]], bool]) -> list[str]:
        """The configurations of this model whose value is ``chosen``, those with most answers first, without lossy
        ones.
        """
        found = [
            config
            for config, record in self._records.items()
            if record.get("model") == model and chosen(record["value"]) and not _lossy(record["value"])
        ]
        return sorted(found, key=lambda config: -len(self._places.get(config, ())))

    def answers(self, query: Query, configurations: list[str]) -> list[Completion] | None:
        """The answers to all turns of a query by the first of the configurations that has them; None if none has."""
        for config in configurations:
            found: list[Completion] = []
            while len(found) < len(query.turns):
                messages = messages_of(query, [answer.text for answer in found])
                answer = self._read(self._places.get(config, {}).get(prompt_id(messages)))
                if answer is None:
                    break
                found.append(answer)
            if len(found) == len(query.turns):
                return found
        return None

    def answer(self, model: str, messages: list[Message]) -> str | None:
        """What the model of this name has answered to these messages, in whatever configuration."""
        prompt = prompt_id(messages)
        for config, record in self._records.items():
            if record.get("model") == model and (found := self._read(self._places.get(config, {}).get(prompt))):
                return found.text
        return None

    def _read(self, place: tuple[int, int] | None) -> Completion | None:
        if place is None:
            return None
        try:
            with self._path.open("rb") as file:
                file.seek(place[0])
                answer = answer_in(file.read(place[1]))
        except OSError:
            return None
        return answer and answer[0]


def _drawn(value: Mapping[str, Any]) -> dict[str, Any]:
    """How the tokens are chosen, and from whose logits: quantized weights make another model. Whether log-probabilities
    are told as well makes no difference.
    """
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
