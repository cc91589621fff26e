"""Token sequences from files of texts, conversations or token ids, read a little at a time.

A plain text (``.txt``) is cut at line ends into pieces of some 64,000 characters. In JSONL a line is one of
``{"text": ...}``, ``{"tokens": [ids]}``, ``{"turns": [...], "answers": [...]}``, ``{"messages": [{"role": ...,
"content": ...}]}``, a row of an Ianvs data file (``{"question": ..., "answer": ...}``), what ``specdec decode`` has
written (``{"prompt": [ids], "output": [prompt and output ids]}``) or ``{"prompt": ...}`` alone. Files may be compressed
(``.gz``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import number_lines, open_text, read_json_lines
from ianvs_specdec.benchmarks.rows import normalize_row, query_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Message, Sampling
from ianvs_specdec.models.templates import DEFAULT_SAMPLING, render

FIELDS = ("text", "answer")
LEAD = 4
"""How many tokens before an answer are kept with it, so that its first tokens can be found."""

PIECE = 64_000
BATCH = 512
KINDS = '"text", "tokens", "turns" and "answers", "messages", "question" and "answer", or "prompt"'


@dataclass
class Passage:
    """Something to be tokenized: ``lead`` and ``body`` one after the other, each a text or ids. ``lead`` is what an
    answer answers, empty where there is no answer."""

    lead: str | list[int]
    body: str | list[int]
    where: str


class Sequences:
    """Turns files into token sequences. ``tokenizer`` may be None where all lines hold ids.

    ``field`` "text" takes all of a line; "answer" only what a model has said in it, with the last tokens before.
    ``sampling``: what the chat template is told.
    """

    def __init__(
        self, tokenizer: Any, vocabulary: int, field: str = "text", sampling: Sampling = DEFAULT_SAMPLING
    ) -> None:
        self._tokenizer, self._vocabulary, self._sampling = tokenizer, vocabulary, sampling
        self._answers = field == "answer"

    def of_files(self, paths: Iterable[Path]) -> Iterator[list[int]]:
        """Raises ``UserError`` with file and line for a line that is none of the kinds above."""
        return self._encoded(chain.from_iterable(self._sources(path) for path in paths))

    def of_conversations(self, conversations: Iterable[tuple[Sequence[str], Sequence[str]]]) -> Iterator[list[int]]:
        """Pairs of turns and answers."""
        talks = (self._talk(_messages(*talk), "a conversation") for talk in conversations)
        return self._encoded(chain.from_iterable(talks))

    def _encoded(self, sources: Iterator[Passage]) -> Iterator[list[int]]:
        while batch := list(islice(sources, BATCH)):
            yield from self._encode(batch)

    def _encode(self, batch: list[Passage]) -> Iterator[list[int]]:
        parts = [part for source in batch for part in (source.lead, source.body)]
        texts = [part for part in parts if isinstance(part, str)]
        if texts and self._tokenizer is None:
            raise UserError(f"{batch[0].where}: a text, but the model has no tokenizer: give token ids")
        encoded = iter(self._tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else ())
        ids = [next(encoded) if isinstance(part, str) else part for part in parts]
        for source, lead, body in zip(batch, ids[::2], ids[1::2], strict=True):
            sequence = [*(lead[-LEAD:] if self._answers else lead), *body]
            if (largest := max(sequence, default=0)) >= self._vocabulary:
                raise UserError(
                    f"{source.where}: token id {largest}, but the model's vocabulary ends at {self._vocabulary - 1}"
                )
            yield sequence

    def _sources(self, path: Path) -> Iterator[Passage]:
        if path.suffix == ".txt" or path.name.endswith(".txt.gz"):
            yield from self._pieces(path)
            return
        for number, row in read_json_lines(path):
            yield from self._line(row, f"{path}:{number}")

    def _pieces(self, path: Path) -> Iterator[Passage]:
        if self._answers:
            raise UserError(f"{path}: a plain text holds no answers: leave out --field answer")
        piece, size = [], 0
        with open_text(path) as file:
            for number, line in number_lines(path, file):
                piece.append(line)
                size += len(line)
                if size >= PIECE:
                    yield Passage("", "".join(piece), f"{path}:{number}")
                    piece, size = [], 0
        yield Passage("", "".join(piece), str(path))

    def _line(self, row: dict[str, Any], where: str) -> Iterable[Passage]:
        if "messages" in row:
            return self._talk(_checked_messages(row["messages"], where), where)
        if "turns" in row:
            return self._talk(_messages(texts(row, "turns", where), texts(row, "answers", where)), where)
        if "question" in row:
            question, answer = normalize_row(row)
            query = query_of(question, answer)
            answers = answer.get("references") or [] if isinstance(answer, dict) else [answer] if answer else []
            return self._talk(_messages(query.turns, answers), where)
        for key in ("text", "tokens", "output", "prompt"):
            if key in row:
                return [self._plain(row, key, where)]
        raise UserError(f"{where}: expected one of {KINDS}")

    def _plain(self, row: dict[str, Any], key: str, where: str) -> Passage:
        body = text_or_ids(row[key], key, where)
        lead: str | list[int] = []
        if key == "output":
            lead = text_or_ids(row.get("prompt", []), "prompt", where)
            if isinstance(body, list) and body[: len(lead)] == lead:
                body = body[len(lead) :]
        elif self._answers:
            raise UserError(f"{where}: {key!r} holds no answer: leave out --field answer")
        return Passage(lead, body, where)

    def _talk(self, messages: list[Message], where: str) -> Iterator[Passage]:
        if not self._answers:
            yield Passage("", self._chat(messages, asking=False), where)
            return
        for number, message in enumerate(messages):
            if message["role"] == "assistant":
                before = self._chat(messages[:number], asking=True)
                whole = self._chat(messages[: number + 1], asking=False)
                body = whole.removeprefix(before) if whole.startswith(before) else message["content"]
                yield Passage(before, body, where)

    def _chat(self, messages: list[Message], *, asking: bool) -> str:
        """As the model is prompted: with its chat template, or as a plain transcript if it has none."""
        if self._tokenizer is not None and self._tokenizer.chat_template:
            return render(self._tokenizer, messages, self._sampling, add_generation_prompt=asking)
        turns = (f"{message['role'].capitalize()}: {message['content']}" for message in messages)
        return "\n\n".join([*turns, "Assistant:"] if asking else turns)


def _messages(turns: Sequence[str], answers: Sequence[str]) -> list[Message]:
    messages: list[Message] = []
    for number, turn in enumerate(turns):
        messages.append({"role": "user", "content": turn})
        if number < len(answers):
            messages.append({"role": "assistant", "content": answers[number]})
    return messages


def _checked_messages(value: Any, where: str) -> list[Message]:
    messages: list[Message] = []
    for message in value if isinstance(value, list) else [value]:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if not (isinstance(role, str) and isinstance(content, str)):
            raise UserError(f'{where}: "messages" must be a list of {{"role": text, "content": text}}')
        messages.append({"role": role, "content": content})
    return messages


def texts(row: dict[str, Any], key: str, where: str) -> list[str]:
    """A list of texts, which may be missing. Raises ``UserError`` for anything else."""
    value = row.get(key, [])
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise UserError(f"{where}: {key!r} must be a list of texts")
    return value


def text_or_ids(value: Any, key: str, where: str) -> str | list[int]:
    """Raises ``UserError`` for anything else."""
    if isinstance(value, str) or (isinstance(value, list) and all(type(i) is int and i >= 0 for i in value)):
        return value
    raise UserError(f"{where}: {key!r} must be a text or a list of token ids")
