"""Response bodies and stream events of ``/v1/chat/completions`` and ``/v1/completions``."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from ianvs_specdec.common.types import Completion
from ianvs_specdec.serving.protocol import details, event, speculation, truncation, usage
from ianvs_specdec.serving.reasoning import ReasoningParser
from ianvs_specdec.serving.requests import ChatRequest

MIN_LOGPROB = -9999.0
"""In place of -inf, which JSON does not have, as in vLLM."""


class ChatAnswer:
    """The answer to a chat. Choices are numbered from 0; ``routing``: see ``engine.Job``."""

    kind: ClassVar[str] = "chat.completion"
    chunk: ClassVar[str] = "chat.completion.chunk"

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self.routing: Mapping[str, Any] | None = None
        # With ``specdec: true`` the text is not split: one piece per step.
        self._splits = None if chat.details else defaultdict[int, ReasoningParser](ReasoningParser)
        self._head = {"id": chat.id, "created": int(time.time()), "model": chat.model}

    def body(self, completions: Sequence[Completion]) -> dict[str, Any]:
        choices = [self._choice(index, completion) for index, completion in enumerate(completions)]
        return {**self._head, "object": self.kind, "choices": choices, **self._counts(completions), **self._routing()}

    def first(self, index: int) -> bytes:
        return self._delta(index, {"role": "assistant", "content": ""}, **self._routing())

    def piece(self, index: int, text: str, *, last: bool = False) -> bytes:
        thought, content = self._parts(index, text, last=last)
        delta = {**_reasoning(thought), **({"content": content} if content else {})}
        return self._delta(index, delta) if delta else b""

    def last(self, index: int, completion: Completion) -> bytes:
        """Finish reason and truncation of a choice, and the log-probabilities of all its tokens if requested."""
        end = {"index": index, "delta": {}, "logprobs": logprobs(completion), "finish_reason": completion.finish_reason}
        return self.piece(index, "", last=True) + self._chunk(choices=[end], **truncation(completion))

    def end(self, completions: Sequence[Completion]) -> bytes:
        """Usage if requested, and the end of the stream."""
        counts = self._chunk(choices=[], **self._counts(completions)) if self._chat.usage else b""
        return counts + b"data: [DONE]\n\n"

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        thought, content = self._parts(index, completion.text, last=True)
        message = {"role": "assistant", "content": content, **_reasoning(thought)}
        return {
            "index": index,
            "message": message,
            "logprobs": logprobs(completion),
            "finish_reason": completion.finish_reason,
        }

    def _counts(self, completions: Sequence[Completion]) -> dict[str, Any]:
        """Usage of all choices; for a single choice also truncation and acceptance."""
        counts: dict[str, Any] = {"usage": usage(completions, self._chat.n)}
        if any(split.found for split in (self._splits or {}).values()):
            thoughts = sum(completion.trace.thinking for completion in completions)
            counts["usage"]["completion_tokens_details"] = {"reasoning_tokens": thoughts}
        if len(completions) == 1:
            counts |= truncation(completions[0])
            if drafts := speculation(completions[0]):
                counts["metrics"] = {"speculative_decoding": drafts}
        return {**counts, **({"specdec": details(completions[0])} if self._chat.details else {})}

    def _parts(self, index: int, text: str, *, last: bool) -> tuple[str, str]:
        return self._splits[index](text, last=last) if self._splits is not None else ("", text)

    def _routing(self) -> dict[str, Any]:
        return {} if self.routing is None else {"routing": dict(self.routing)}

    def _delta(self, index: int, delta: dict[str, str], **fields: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._chunk(choices=[choice], **fields)

    def _chunk(self, **fields: Any) -> bytes:
        return event({**self._head, "object": self.chunk, **fields})


class TextAnswer(ChatAnswer):
    """The answer to a prompt: the text with its thoughts."""

    kind = chunk = "text_completion"

    def __init__(self, chat: ChatRequest) -> None:
        super().__init__(chat)
        self._splits = None

    def first(self, index: int) -> bytes:
        return b""

    def piece(self, index: int, text: str, *, last: bool = False) -> bytes:
        return self._chunk(choices=[self._part(index, text)]) if text else b""

    def last(self, index: int, completion: Completion) -> bytes:
        return self._chunk(choices=[{**self._choice(index, completion), "text": ""}], **truncation(completion))

    def _choice(self, index: int, completion: Completion) -> dict[str, Any]:
        end = {"logprobs": text_logprobs(completion), "finish_reason": completion.finish_reason}
        return {**self._part(index, completion.text), **end}

    def _part(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}


def _reasoning(thought: str) -> dict[str, str]:
    """The field names of DeepSeek's API, llama.cpp and SGLang, and of vLLM and OpenRouter."""
    return dict.fromkeys(("reasoning_content", "reasoning"), thought) if thought else {}


def _tokens(completion: Completion) -> Iterator[tuple[str, float | None, list[tuple[str, float]]]]:
    """Text, log-probability and alternatives of each token. The end token has an empty text, the first token of an
    echoed prompt no log-probability.
    """
    trace = completion.trace
    confidence, characters = trace.confidence or [], trace.characters or []
    ends = list(itertools.accumulate(characters))
    unscored = len(characters) - len(confidence)
    values = [*([None] * unscored), *(max(own, MIN_LOGPROB) for own, _, _ in confidence)]
    top = [*([[]] * unscored), *(trace.top or itertools.repeat([], len(confidence)))]
    for start, end, own, likely in zip([0, *ends[:-1]], ends, values, top, strict=True):
        yield completion.text[start:end], own, [(str(token), max(value, MIN_LOGPROB)) for token, value in likely]


def logprobs(completion: Completion) -> dict[str, Any] | None:
    """``logprobs`` of a chat; None if not requested."""
    if completion.trace.confidence is None or completion.trace.characters is None:
        return None

    def entry(piece: str, value: float | None) -> dict[str, Any]:
        return {"token": piece, "logprob": value, "bytes": list(piece.encode())}

    content = [
        {**entry(piece, own), "top_logprobs": [entry(*other) for other in likely]}
        for piece, own, likely in _tokens(completion)
    ]
    return {"content": content, "refusal": None}


def text_logprobs(completion: Completion) -> dict[str, Any] | None:
    """``logprobs`` of a text, None if not requested. As in vLLM, the alternatives include the token itself and are
    keyed by their text: the likeliest of several tokens with the same text counts."""
    if completion.trace.confidence is None or completion.trace.characters is None:
        return None
    tokens = list(_tokens(completion))
    lengths = [len(piece) for piece, _, _ in tokens]
    return {
        "tokens": [piece for piece, _, _ in tokens],
        "token_logprobs": [own for _, own, _ in tokens],
        "top_logprobs": [None if own is None else {piece: own, **dict(likely[::-1])} for piece, own, likely in tokens],
        "text_offset": list(itertools.accumulate(lengths, initial=0))[:-1],
    }
