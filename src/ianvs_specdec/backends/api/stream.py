"""Parser of streamed chat completions: server-sent events to text, token counts and times."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ianvs_specdec.backends.api import decoding_stats
from ianvs_specdec.backends.api.failures import (
    MAX_BODY,
    NO_STREAM,
    AttemptError,
    RetryOutlook,
    message_of,
    of_event,
)
from ianvs_specdec.backends.base import OnChunk
from ianvs_specdec.backends.top_logprobs import StreamedLogprobs, all_certain
from ianvs_specdec.backends.untrusted import MAX_TOKENS, ImplausibleNumber, bounded_int, reject_constant
from ianvs_specdec.benchmarks.reasoning import answer_start
from ianvs_specdec.common.types import Completion, Trace

MAX_EVENT = 1 << 24
MAX_STREAM = 1 << 28
STREAM_BASE, STREAM_BYTES_PER_TOKEN = 1 << 20, 1 << 14
"""Bytes of a stream: fixed, and per token with its likeliest alternatives."""
EXTRA_TOKENS = 8
"""Tokens beyond ``max_tokens``: some servers do not count end tokens against it."""
TEMPLATE_TOKENS = 1 << 17
"""Tokens that a server's template and instructions may add to a prompt."""
TRUNCATED = "truncated_prompt_tokens"
"""Field in which ``specdec serve`` reports the number of truncated prompt tokens."""
EVENT = re.compile(rb":|(?:data|event|id|retry)(?::|$)")
"""Start of a line in a stream of events."""
LONG_NUMBER = re.compile(rb"\d{1000}")
"""Python's JSON parser refuses much longer numbers."""
BROKEN_REASONS = frozenset({"error", "abort"})


@dataclass(frozen=True)
class TokenBounds:
    """Maximum tokens of prompt and answer of a request."""

    prompt: int = MAX_TOKENS
    completion: int = MAX_TOKENS

    @classmethod
    def of(cls, body: Mapping[str, Any], size: int) -> TokenBounds:
        """For a request of ``size`` bytes: a token has at least one."""
        limits = [body.get(name) for name in ("max_tokens", "max_completion_tokens")]
        valid = [limit for limit in limits if type(limit) is int and 0 < limit <= MAX_TOKENS]
        return cls(size + TEMPLATE_TOKENS, max(valid, default=MAX_TOKENS))

    @property
    def stream(self) -> int:
        """Maximum bytes of the stream."""
        return min(MAX_STREAM, STREAM_BASE + self.completion * STREAM_BYTES_PER_TOKEN)


class StreamedAnswer:
    """An answer being received. Times are seconds since the request was issued.

    Most servers report the token count at the end only. It is then distributed over the chunks by their characters, or
    by the steps of ``specdec serve``. Reasoning (``reasoning_content``) counts as output, but is not part of the text;
    hidden reasoning is attributed to the first chunk.

    ``logprobs``: the answer must have log-probabilities. Numbers out of ``bounds`` raise ImplausibleNumber.
    """

    def __init__(
        self, on_chunk: OnChunk | None = None, *, logprobs: bool = False, bounds: TokenBounds | None = None
    ) -> None:
        self._on_chunk = on_chunk
        self._bounds = bounds or TokenBounds()
        self._logprobs = StreamedLogprobs() if logprobs else None
        self._line = bytearray()
        self._data: list[bytes] = []
        self._invalid = bytearray()
        self._size = 0
        self._begun = False
        self._pieces: list[tuple[float, int, int | None]] = []
        self._characters = 0
        self._reasoning = 0
        self._before = 0
        """Pieces of reasoning before the first piece of text."""
        self._truncated: int | None = None
        self._text: list[str] = []
        # Some servers split a surrogate pair.
        self._surrogates = codecs.getincrementaldecoder("utf-16-le")("replace")
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._ended = 0.0
        self._metrics: Mapping[str, Any] = {}
        self._sglang: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}
        self._specdec: Mapping[str, Any] = {}
        self.done = False

    def feed(self, data: bytes, seconds: float) -> None:
        """Parse received bytes. Raises AttemptError or ImplausibleNumber."""
        self._size += len(data)
        self._line += data
        if len(self._line) > MAX_EVENT or self._size > self._bounds.stream:
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
            elif line and not EVENT.match(line) and len(self._invalid) < MAX_BODY:
                self._invalid += line[:MAX_BODY] + b"\n"

    def _event(self, payload: bytes, seconds: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            self._chunk(json.loads(payload, parse_constant=reject_constant), seconds)
        except (ImplausibleNumber, AttemptError):
            raise
        except (ValueError, AttributeError, TypeError, KeyError, OverflowError, RecursionError) as error:
            if type(error) is ValueError and LONG_NUMBER.search(payload):
                raise ImplausibleNumber("a number has thousands of digits") from error
            raise AttemptError("broken stream", "the stream has an event that is no chat completion chunk") from error

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
            self._truncated = bounded_int(chunk[TRUNCATED], TRUNCATED, self._bounds.prompt)
        # Some servers first send the prompt's tokens only.
        counted = usage.get("completion_tokens") if usage else None
        # One answer was requested: others are ignored.
        for choice in (chunk.get("choices") or ())[:1]:
            if not choice.get("index"):
                self._choice(choice, counted, seconds)

    def _choice(self, choice: Any, counted: Any, seconds: float) -> None:
        if self._logprobs is not None:
            self._logprobs.add(choice.get("logprobs"))
        self._take(choice.get("delta") or {}, None if counted is None else self._counted(counted), seconds)
        if choice.get("finish_reason"):
            self._finish_reason, self._ended = str(choice["finish_reason"]), seconds

    def _counted(self, value: Any) -> int:
        # Some servers do not count reasoning against the limit.
        return bounded_int(value, "completion_tokens", self._bounds.completion + EXTRA_TOKENS + self._reasoning)

    def _take(self, delta: Mapping[str, Any], counted: int | None, seconds: float) -> None:
        content, thoughts = _text_and_thoughts(delta.get("content"))
        reasoning = "".join(_text_and_thoughts(delta.get("reasoning_content") or delta.get("reasoning"))) + thoughts
        piece = content or delta.get("refusal") or ""
        if not isinstance(piece, str) or not isinstance(reasoning, str):
            raise TypeError("a piece of an answer is not a text")
        piece = self._surrogates.decode(piece.encode("utf-16-le", "surrogatepass"))
        if not piece and not reasoning:
            return
        self._characters += len(reasoning) + len(piece)
        self._reasoning += len(reasoning.encode("utf-8", "replace"))
        self._pieces.append((seconds, self._characters, counted))
        self._before += not self._text and not piece
        if piece:
            self._text.append(piece)
        # For reasoning, an empty piece.
        if self._on_chunk is not None:
            self._on_chunk(piece, 0)

    def completion(self) -> Completion:
        """The answer at the end of the stream. Raises AttemptError or ImplausibleNumber if it is incomplete."""
        text = "".join(self._text) + self._surrogates.decode(b"", final=True)
        if not self._pieces and self._finish_reason is None:
            self._check_events()
        if self._finish_reason is None or self._finish_reason in BROKEN_REASONS:
            how = "without a finish reason" if self._finish_reason is None else f"as {self._finish_reason!r}"
            raise AttemptError("broken stream", f"the stream ended after {len(text)} characters {how}")
        if self._usage is None and not self.done:
            raise AttemptError("broken stream", "the stream ended before the token usage")
        prompt, tokens = ((self._usage or {}).get(name) for name in ("prompt_tokens", "completion_tokens"))
        if tokens is not None:
            prompt = None if prompt is None else bounded_int(prompt, "prompt_tokens", self._bounds.prompt)
            tokens = self._counted(tokens)
        if prompt is None or tokens is None or (text and not tokens):
            reason = (
                "it does not report the token usage, which was requested (stream_options: include_usage) and is needed "
                "for measurements; try a newer version of the server, its settings, or the server without a proxy"
            )
            raise AttemptError("no usage", reason, RetryOutlook.ENDPOINT)
        trace = Trace(self._chunks(tokens) or ([(self._ended, tokens)] if tokens else []))
        ids = self._engine(tokens, trace)
        if self._logprobs is not None:
            self._set_confidence(self._logprobs, text, tokens, trace)
        emitted = [step.emitted for step in trace.steps]
        if self._specdec and len(emitted) + 1 == len(self._pieces) and sum(emitted) <= tokens:
            counts = [tokens - sum(emitted), *emitted]
            trace.chunks = [(piece[0], count) for piece, count in zip(self._pieces, counts, strict=True)]
        self._set_thoughts(text, trace)
        reason = "length" if self._finish_reason == "length" else "stop"
        cached = min(self._detail("prompt_tokens_details", "cached_tokens", self._bounds.prompt), prompt)
        return Completion(text, ids, prompt, tokens, reason, trace, self._truncated, cached)

    def _check_events(self) -> None:
        """Raise AttemptError for a body that is no stream of events: servers may omit the content type."""
        rest = bytes(self._line)
        cut = EVENT.match(rest) or any(name.startswith(rest) for name in (b"data", b"event", b"id", b"retry"))
        came = bytes(self._invalid) + (b"" if cut else rest)
        if came.strip():
            message, _ = message_of(came[:MAX_BODY], "")
            raise AttemptError(NO_STREAM, f"it answers, not with a stream of events: {message}", RetryOutlook.ENDPOINT)

    def _detail(self, group: str, name: str, most: int) -> int:
        """A detail of the usage, 0 if absent."""
        value = _part(self._usage or {}, group).get(name)
        return 0 if value is None else bounded_int(value, name, most)

    @property
    def _reasoning_tokens(self) -> int:
        return self._detail("completion_tokens_details", "reasoning_tokens", MAX_TOKENS)

    def _chunks(self, tokens: int) -> list[tuple[float, int]]:
        """Times and token counts, which add up to ``tokens``."""
        hidden = min(self._reasoning_tokens, tokens) if not self._reasoning else 0
        chunks, before = [], 0
        for index, (seconds, characters, counted) in enumerate(self._pieces):
            last = index == len(self._pieces) - 1
            share = hidden + round((tokens - hidden) * characters / self._characters) if counted is None else counted
            upto = tokens if last else max(before, min(share, tokens))
            chunks.append((seconds, upto - before))
            before = upto
        return chunks

    def _set_thoughts(self, text: str, trace: Trace) -> None:
        """Set the number of thought tokens, separate or in the text, and the time when the answer began."""
        before, counted = self._before, self._reasoning_tokens
        start = answer_start(text)
        if not before and start != 0:
            upto = len(text) if start is None else start
            before = sum(characters <= upto for _, characters, _ in self._pieces)
        if before or counted:
            trace.thinking = min(trace.tokens, counted or sum(tokens for _, tokens in trace.chunks[:before]))
            trace.answered = trace.chunks[before][0] if text and before < len(trace.chunks) else None

    def _set_confidence(self, received: StreamedLogprobs, text: str, tokens: int, trace: Trace) -> None:
        """Set the trace's log-probabilities. Raises AttemptError if there are none."""
        if trace.confidence is not None:
            return
        lack = "" if received.alternatives else "the likeliest tokens (top_logprobs)"
        if all_certain(received.triples):
            lack = "the log-probabilities of its tokens" + (", which are all 0" if received.triples else "")
        if tokens and lack:
            reason = f"it does not return {lack}, which logprobs: true requests: leave that out, or use another server"
            raise AttemptError("no logprobs", reason, RetryOutlook.ENDPOINT)
        trace.confidence, trace.letters = received.triples, received.letters
        trace.characters = received.characters(text)

    def _engine(self, tokens: int, trace: Trace) -> list[int]:
        """Set decoding statistics of the trace. Returns token ids, empty if the server does not send them."""
        try:
            trace.steps = decoding_stats.steps_of(self._specdec, tokens)
            trace.near_ties = decoding_stats.near_ties_of(self._specdec, tokens)
            if self._logprobs is not None and self._specdec.get("confidence"):
                decoding_stats.confidence_into(trace, self._specdec, tokens)
            ids = decoding_stats.token_ids_of(self._specdec, tokens)
            if self._truncated is None and self._specdec.get("truncated") is not None:
                self._truncated = bounded_int(self._specdec["truncated"], "truncated", self._bounds.prompt)
            decoding_stats.drafts_into(trace, self._timings, tokens, cut=self._finish_reason == "length")
            if (self._metrics or self._sglang) and not trace.steps:
                with suppress(TypeError, KeyError):
                    metrics = self._metrics or decoding_stats.acceptance_of_sglang(self._sglang, tokens)
                    trace.steps = decoding_stats.steps_of_acceptance(metrics, tokens)
        except ImplausibleNumber:
            raise
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise AttemptError("broken stream", "the server's decoding statistics cannot be read") from error
        if ids and len(ids) != tokens:
            raise AttemptError("broken stream", f"the server counts {tokens} tokens and lists {len(ids)}")
        return ids


def _part(chunk: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The object ``name``, empty if absent."""
    return part if isinstance(part := chunk.get(name), dict) else {}


def _text_and_thoughts(content: Any) -> tuple[Any, str]:
    """Text and thoughts of content, which is a text or a list of parts."""
    if not isinstance(content, list):
        return content or "", ""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in content:
        into = thoughts if part.get("type") in ("thinking", "reasoning") else texts
        into.append("".join(_text_and_thoughts(part.get("thinking") or part.get("text") or part.get("refusal"))))
    return "".join(texts), "".join(thoughts)
