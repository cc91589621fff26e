"""One streamed chat completion: server-sent events to text, counted tokens and times."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ianvs_specdec.backends.api import engine
from ianvs_specdec.backends.api.failures import (
    LONGEST_BODY,
    NO_STREAM,
    AttemptError,
    RetryOutlook,
    message_of,
    of_event,
)
from ianvs_specdec.backends.base import OnChunk
from ianvs_specdec.backends.top_logprobs import ToldLogprobs, all_certain
from ianvs_specdec.backends.untrusted import MOST_TOKENS, ImplausibleNumber, no_number, whole
from ianvs_specdec.benchmarks.reasoning import answer_start
from ianvs_specdec.common.types import Completion, Trace

LONGEST_EVENT = 1 << 24
LONGEST_STREAM = 1 << 28
STREAM_BASE, STREAM_BYTES_PER_TOKEN = 1 << 20, 1 << 14
"""Bytes of a stream: its beginning and end, and what comes with a token, twenty likely other ones among it."""
MORE_TOKENS = 8
"""Beyond the limit that was asked for: servers differ in whether they count the tokens that end an answer."""
OWN_PROMPT = 1 << 17
"""Tokens that a server's template and instructions may add to a prompt."""
TRUNCATED = "truncated_prompt_tokens"
"""Where ``specdec serve`` says how many tokens of the prompt were left out."""
EVENT = re.compile(rb":|(?:data|event|id|retry)(?::|$)")
"""How a line of a stream of events begins."""
LONG_NUMBER = re.compile(rb"\d{1000}")
"""Python reads no number that is much longer."""
BROKEN_REASONS = frozenset({"error", "abort"})


@dataclass(frozen=True)
class Most:
    """What the tokens of a request can be at most: of its prompt, which has ``prompt`` bytes, and of its answer."""

    prompt: int = MOST_TOKENS
    completion: int = MOST_TOKENS

    @classmethod
    def of(cls, body: Mapping[str, Any], size: int) -> Most:
        """For a request of ``size`` bytes."""
        limits = [body.get(name) for name in ("max_tokens", "max_completion_tokens")]
        asked = [limit for limit in limits if type(limit) is int and 0 < limit <= MOST_TOKENS]
        return cls(size + OWN_PROMPT, max(asked, default=MOST_TOKENS))

    @property
    def stream(self) -> int:
        """Bytes of the whole answer."""
        return min(LONGEST_STREAM, STREAM_BASE + self.completion * STREAM_BYTES_PER_TOKEN)


class StreamedAnswer:
    """What has come of an answer. Times are seconds since the request was issued.

    A stream has its token count only at its end (some servers with every chunk). Until then chunks are
    counted by characters: each gets its share of the total in proportion, rounded so that the sum is right. Where
    ``specdec serve`` sends its steps, and there is a chunk for each, they count. What a model reasons before it answers
    (``reasoning_content``) is output, counted and timed, but not part of the text; reasoning that is counted and not
    shown is taken to have come with the first chunk.

    ``logprobs``: log-probabilities were asked for; an answer without them is none. Every number is believed only
    within what the request can have led to (``most``), and refused with ImplausibleNumber.
    """

    def __init__(self, on_chunk: OnChunk | None = None, *, logprobs: bool = False, most: Most | None = None) -> None:
        self._on_chunk = on_chunk
        self._most = most or Most()
        self._logprobs = ToldLogprobs() if logprobs else None
        self._line = bytearray()
        self._data: list[bytes] = []
        self._strange = bytearray()
        self._size = 0
        self._begun = False
        self._pieces: list[tuple[float, int, int | None]] = []
        self._characters = 0
        self._reasoning = 0
        self._before = 0
        """Pieces of reasoning before the first one of the answer."""
        self._truncated: int | None = None
        self._text: list[str] = []
        # Some servers cut between the halves of a character, and JSON lets them.
        self._halves = codecs.getincrementaldecoder("utf-16-le")("replace")
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._ended = 0.0
        self._metrics: Mapping[str, Any] = {}
        self._sglang: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._specdec: Mapping[str, Any] = {}
        self.done = False

    def feed(self, data: bytes, seconds: float) -> None:
        """Take what has just arrived. Raises AttemptError or ImplausibleNumber for what is no answer."""
        self._size += len(data)
        self._line += data
        if len(self._line) > LONGEST_EVENT or self._size > self._most.stream:
            raise AttemptError("broken stream", "the server sends more than an answer can hold", RetryOutlook.REQUEST)
        if b"\n" not in data:
            return
        *lines, rest = self._line.split(b"\n")
        self._line = rest
        if not self._begun:
            self._begun, lines[0] = True, lines[0].removeprefix(codecs.BOM_UTF8)
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(bytes(line[5:].strip()))
            elif not line and self._data:
                payload, self._data = b"\n".join(self._data), []
                self._event(payload, seconds)
            elif line and not EVENT.match(line) and len(self._strange) < LONGEST_BODY:
                self._strange += line[:LONGEST_BODY] + b"\n"

    def _event(self, payload: bytes, seconds: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            self._chunk(json.loads(payload, parse_constant=no_number), seconds)
        except (ImplausibleNumber, AttemptError):
            raise
        except (ValueError, AttributeError, TypeError, KeyError, OverflowError, RecursionError) as error:
            if type(error) is ValueError and LONG_NUMBER.search(payload):
                raise ImplausibleNumber("a number has thousands of digits") from error
            raise AttemptError("broken stream", "the stream holds what is no chunk of a chat completion") from error

    def _chunk(self, chunk: Any, seconds: float) -> None:
        if chunk.get("error"):
            raise of_event(chunk["error"])
        usage = chunk.get("usage")
        if usage and not isinstance(usage, dict):
            raise TypeError("the token usage is not an object")
        self._usage = usage or self._usage
        self._metrics = _part(_part(chunk, "metrics"), "speculative_decoding") or self._metrics
        self._sglang = _part(_part(chunk, "sglext"), "spec_tokens_details") or self._sglang
        self._timings = _part(chunk, "timings") or self._timings
        self._specdec = chunk.get("specdec") or self._specdec
        if chunk.get(TRUNCATED) is not None:
            self._truncated = whole(chunk[TRUNCATED], TRUNCATED, self._most.prompt)
        # At the beginning, some servers send the prompt's tokens only.
        counted = usage.get("completion_tokens") if usage else None
        # One answer was asked for: further ones are not part of it.
        for choice in (chunk.get("choices") or ())[:1]:
            if not choice.get("index"):
                self._choice(choice, counted, seconds)

    def _choice(self, choice: Any, counted: Any, seconds: float) -> None:
        if self._logprobs is not None:
            self._logprobs.take(choice.get("logprobs"))
        self._take(choice.get("delta") or {}, None if counted is None else self._counted(counted), seconds)
        if choice.get("finish_reason"):
            self._finish_reason, self._ended = str(choice["finish_reason"]), seconds

    def _counted(self, value: Any) -> int:
        # What a model reasons aloud is counted, but not by all servers against the limit.
        return whole(value, "completion_tokens", self._most.completion + MORE_TOKENS + self._reasoning)

    def _take(self, delta: Mapping[str, Any], counted: int | None, seconds: float) -> None:
        content, thoughts = _told(delta.get("content"))
        reasoning = "".join(_told(delta.get("reasoning_content") or delta.get("reasoning"))) + thoughts
        piece = content or delta.get("refusal") or ""
        if not isinstance(piece, str) or not isinstance(reasoning, str):
            raise TypeError("a piece of an answer is not a text")
        piece = self._halves.decode(piece.encode("utf-16-le", "surrogatepass"))
        if not piece and not reasoning:
            return
        self._characters += len(reasoning) + len(piece)
        self._reasoning += len(reasoning.encode("utf-8", "replace"))
        self._pieces.append((seconds, self._characters, counted))
        self._before += not self._text and not piece
        if piece:
            self._text.append(piece)
        # Of a thought, nothing but that there is one.
        if self._on_chunk is not None:
            self._on_chunk(piece, 0)

    def completion(self) -> Completion:
        """The answer, when the stream has ended. Raises AttemptError or ImplausibleNumber if it is not whole."""
        text = "".join(self._text) + self._halves.decode(b"", final=True)
        if not self._pieces and self._finish_reason is None:
            self._check_events()
        if self._finish_reason is None or self._finish_reason in BROKEN_REASONS:
            how = "without a finish reason" if self._finish_reason is None else f"as {self._finish_reason!r}"
            raise AttemptError("broken stream", f"the stream ended after {len(text)} characters {how}")
        if self._usage is None and not self.done:
            raise AttemptError("broken stream", "the stream ended before the token usage was told")
        prompt, tokens = ((self._usage or {}).get(name) for name in ("prompt_tokens", "completion_tokens"))
        if tokens is not None:
            prompt = None if prompt is None else whole(prompt, "prompt_tokens", self._most.prompt)
            tokens = self._counted(tokens)
        if prompt is None or tokens is None or (text and not tokens):
            reason = (
                "it does not report the token usage, which was asked for (stream_options: include_usage) and without "
                "which nothing can be measured; does a newer version of the server report it, or a setting, or the "
                "server itself in place of a proxy before it?"
            )
            raise AttemptError("no usage", reason, RetryOutlook.ENDPOINT)
        trace = Trace(self._chunks(tokens) or ([(self._ended, tokens)] if tokens else []))
        ids = self._engine(tokens, trace)
        if self._logprobs is not None:
            self._tell_confidence(self._logprobs, text, tokens, trace)
        emitted = [step.emitted for step in trace.steps]
        if self._specdec and len(emitted) + 1 == len(self._pieces) and sum(emitted) <= tokens:
            counts = [tokens - sum(emitted), *emitted]
            trace.chunks = [(piece[0], count) for piece, count in zip(self._pieces, counts, strict=True)]
        self._tell_thoughts(text, trace)
        reason = "length" if self._finish_reason == "length" else "stop"
        cached = min(self._detail("prompt_tokens_details", "cached_tokens", self._most.prompt), prompt)
        return Completion(text, ids, prompt, tokens, reason, trace, self._truncated, cached)

    def _check_events(self) -> None:
        """Raise AttemptError if what came was something else from its beginning: servers may give no content type."""
        rest = bytes(self._line)
        cut = EVENT.match(rest) or any(name.startswith(rest) for name in (b"data", b"event", b"id", b"retry"))
        came = bytes(self._strange) + (b"" if cut else rest)
        if came.strip():
            message, _ = message_of(came[:LONGEST_BODY], "")
            raise AttemptError(NO_STREAM, f"it answers, not with a stream of events: {message}", RetryOutlook.ENDPOINT)

    def _detail(self, group: str, name: str, most: int) -> int:
        """A count beside the usage, 0 where there is none."""
        told = _part(self._usage or {}, group).get(name)
        return 0 if told is None else whole(told, name, most)

    def _chunks(self, tokens: int) -> list[tuple[float, int]]:
        """Times with token counts that add up to ``tokens``."""
        hidden = self._hidden(tokens)
        chunks, before = [], 0
        for index, (seconds, characters, counted) in enumerate(self._pieces):
            last = index == len(self._pieces) - 1
            share = hidden + round((tokens - hidden) * characters / self._characters) if counted is None else counted
            upto = tokens if last else max(before, min(share, tokens))
            chunks.append((seconds, upto - before))
            before = upto
        return chunks

    def _tell_thoughts(self, text: str, trace: Trace) -> None:
        """How many tokens were thoughts, shown apart or in the text, and when the answer began, go into the trace."""
        before, counted = self._before, self._detail("completion_tokens_details", "reasoning_tokens", MOST_TOKENS)
        start = answer_start(text)
        if not before and start != 0:
            upto = len(text) if start is None else start
            before = sum(characters <= upto for _, characters, _ in self._pieces)
        if before or counted:
            trace.thinking = min(trace.tokens, counted or sum(tokens for _, tokens in trace.chunks[:before]))
            trace.answered = trace.chunks[before][0] if text and before < len(trace.chunks) else None

    def _hidden(self, tokens: int) -> int:
        """Output tokens of which the stream showed nothing."""
        reasoned = self._detail("completion_tokens_details", "reasoning_tokens", MOST_TOKENS)
        return min(reasoned, tokens) if not self._reasoning else 0

    def _tell_confidence(self, told: ToldLogprobs, text: str, tokens: int, trace: Trace) -> None:
        """Put the server's log-probabilities into the trace. Raises AttemptError where there are none."""
        if trace.confidence is not None:
            return
        lack = "" if told.alternatives else "the likeliest tokens (top_logprobs)"
        if all_certain(told.triples):
            lack = "the log-probabilities of its tokens" + (", which are all 0" if told.triples else "")
        if tokens and lack:
            reason = f"it does not tell {lack}, which logprobs: true asks for: leave that out, or ask another server"
            raise AttemptError("no logprobs", reason, RetryOutlook.ENDPOINT)
        trace.confidence, trace.characters, trace.letters = told.triples, told.characters(text), told.letters

    def _engine(self, tokens: int, trace: Trace) -> list[int]:
        """Token ids, where the server sends them. Its steps and near ties go into the trace."""
        try:
            trace.steps = engine.steps_of(self._specdec, tokens)
            trace.near_ties = engine.near_ties_of(self._specdec, tokens)
            if self._logprobs is not None and self._specdec.get("confidence"):
                engine.confidence_into(trace, self._specdec, tokens)
            ids = engine.token_ids_of(self._specdec, tokens)
            if self._truncated is None and self._specdec.get("truncated") is not None:
                self._truncated = whole(self._specdec["truncated"], "truncated", self._most.prompt)
            engine.drafts_into(trace, self._timings, tokens, cut=self._finish_reason == "length")
            if (self._metrics or self._sglang) and not trace.steps:
                with suppress(TypeError, KeyError):
                    told = self._metrics or engine.acceptance_of_sglang(self._sglang, tokens)
                    trace.steps = engine.steps_of_acceptance(told, tokens)
        except ImplausibleNumber:
            raise
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise AttemptError("broken stream", "what the server tells of its decoding cannot be read") from error
        if ids and len(ids) != tokens:
            raise AttemptError("broken stream", f"the server counts {tokens} tokens and lists {len(ids)}")
        return ids


def _part(told: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object under ``name``, empty where there is none."""
    return part if isinstance(part := told.get(name), dict) else {}


def _told(content: Any) -> tuple[Any, str]:
    """What a model says, and what it thinks, in a text or in a list of parts."""
    if not isinstance(content, list):
        return content or "", ""
    said: list[str] = []
    thought: list[str] = []
    for part in content:
        into = thought if part.get("type") in ("thinking", "reasoning") else said
        into.append("".join(_told(part.get("thinking") or part.get("text") or part.get("refusal"))))
    return "".join(said), "".join(thought)
