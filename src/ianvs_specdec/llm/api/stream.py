"""One streamed chat completion: server-sent events to text, counted tokens and times."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from ianvs_specdec.llm.api.failures import LONGEST_BODY, AttemptError, Outlook, message_of, of_event
from ianvs_specdec.llm.base import OnChunk
from ianvs_specdec.llm.top_logprobs import ToldLogprobs
from ianvs_specdec.types import Completion, Step, Trace

LONGEST_EVENT = 1 << 24
LONGEST_STREAM = 1 << 28
EVENT = re.compile(rb":|(?:data|event|id|retry)(?::|$)")
"""How a line of a stream of events begins."""
BROKEN_REASONS = frozenset({"error", "abort"})


class StreamedAnswer:
    """What has come of an answer. Times are seconds since the request was issued.

    A stream tells how many tokens it held only at its end (some servers with every chunk). Until then chunks are
    counted by characters: each gets its share of the total in proportion, rounded so that the sum is right. Where
    ``specdec serve`` tells its steps, and there is a chunk for each, they count. What a model reasons before it answers
    (``reasoning_content``) is output, counted and timed, but not part of the text; reasoning that is counted and not
    shown is taken to have come with the first chunk.

    ``logprobs``: log-probabilities were asked for; an answer without them is none.
    """

    def __init__(self, on_chunk: OnChunk | None = None, *, logprobs: bool = False) -> None:
        self._on_chunk = on_chunk
        self._logprobs = ToldLogprobs() if logprobs else None
        self._line = bytearray()
        self._data: list[bytes] = []
        self._strange = bytearray()
        self._size = 0
        self._pieces: list[tuple[float, int, int | None]] = []
        self._characters = 0
        self._text: list[str] = []
        self._usage: Mapping[str, Any] | None = None
        self._finish_reason: str | None = None
        self._ended = 0.0
        self._metrics: Mapping[str, Any] = {}
        self._specdec: Mapping[str, Any] = {}
        self.done = False
        self.delivered = False

    def feed(self, data: bytes, seconds: float) -> None:
        """Take what has just arrived. Raises AttemptError for what is no answer."""
        self._size += len(data)
        self._line += data
        if len(self._line) > LONGEST_EVENT or self._size > LONGEST_STREAM:
            raise AttemptError("broken stream", "the server sends more than an answer can hold", Outlook.REQUEST)
        if b"\n" not in data:
            return
        *lines, rest = self._line.split(b"\n")
        self._line = rest
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
            chunk = json.loads(payload)
            if chunk.get("error"):
                raise of_event(chunk["error"])
            usage, choices = chunk.get("usage"), chunk.get("choices") or ()
            self._usage = usage or self._usage
            self._metrics = (chunk.get("metrics") or {}).get("speculative_decoding") or self._metrics
            self._specdec = chunk.get("specdec") or self._specdec
            for choice in choices[:1]:
                if self._logprobs is not None:
                    self._logprobs.take(choice.get("logprobs"))
                self._take(choice.get("delta") or {}, int(usage["completion_tokens"]) if usage else None, seconds)
                if choice.get("finish_reason"):
                    self._finish_reason, self._ended = str(choice["finish_reason"]), seconds
        except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
            raise AttemptError("broken stream", "the stream holds what is no chunk of a chat completion") from error

    def _take(self, delta: Mapping[str, Any], counted: int | None, seconds: float) -> None:
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        piece = delta.get("content") or delta.get("refusal") or ""
        if not isinstance(piece, str) or not isinstance(reasoning, str):
            raise TypeError("a piece of an answer is not a text")
        if not piece and not reasoning:
            return
        self._characters += len(reasoning) + len(piece)
        self._pieces.append((seconds, self._characters, counted))
        if piece:
            self._text.append(piece)
            if self._on_chunk is not None:
                self.delivered = True
                self._on_chunk(piece, 0)

    def completion(self) -> Completion:
        """The answer, when the stream has ended. Raises AttemptError if it is not whole."""
        text = "".join(self._text)
        if not self._pieces and self._finish_reason is None:
            self._check_events()
        if self._finish_reason is None or self._finish_reason in BROKEN_REASONS:
            how = "without a finish reason" if self._finish_reason is None else f"as {self._finish_reason!r}"
            raise AttemptError("broken stream", f"the stream ended after {len(text)} characters {how}")
        if self._usage is None and not self.done:
            raise AttemptError("broken stream", "the stream ended before the token usage was told")
        prompt, tokens = self._count("prompt_tokens"), self._count("completion_tokens")
        if prompt is None or tokens is None or (text and not tokens):
            reason = (
                "it does not report the token usage, which was asked for (stream_options: include_usage) and without "
                "which nothing can be measured; does a newer version of the server report it, or a setting, or the "
                "server itself in place of a proxy before it?"
            )
            raise AttemptError("no usage", reason, Outlook.ENDPOINT)
        trace = Trace(self._chunks(tokens) or ([(self._ended, tokens)] if tokens else []))
        ids, truncated = self._engine(tokens, trace)
        if self._logprobs is not None:
            self._tell_confidence(self._logprobs, text, tokens, trace)
        emitted = [step.emitted for step in trace.steps]
        if self._specdec and len(emitted) + 1 == len(self._pieces) and sum(emitted) <= tokens:
            counts = [tokens - sum(emitted), *emitted]
            trace.chunks = [(piece[0], count) for piece, count in zip(self._pieces, counts, strict=True)]
        reason = "length" if self._finish_reason == "length" else "stop"
        details = (self._usage or {}).get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
        cached = min(cached, prompt) if isinstance(cached, int) and cached > 0 else 0
        return Completion(text, ids, prompt, tokens, reason, trace, truncated, cached)

    def _check_events(self) -> None:
        """Raise AttemptError if what came was something else from its beginning: servers may give no content type."""
        rest = bytes(self._line)
        cut = EVENT.match(rest) or any(name.startswith(rest) for name in (b"data", b"event", b"id", b"retry"))
        came = bytes(self._strange) + (b"" if cut else rest)
        if came.strip():
            message, _ = message_of(came[:LONGEST_BODY], "")
            raise AttemptError("no stream", f"it answers, not with a stream of events: {message}", Outlook.ENDPOINT)

    def _count(self, name: str) -> int | None:
        value = (self._usage or {}).get(name)
        return value if isinstance(value, int) and value >= 0 else None

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

    def _hidden(self, tokens: int) -> int:
        """Output tokens of which the stream showed nothing."""
        details = (self._usage or {}).get("completion_tokens_details") or {}
        reasoned = details.get("reasoning_tokens") or 0
        shown = self._characters > sum(map(len, self._text))
        return min(reasoned, tokens) if isinstance(reasoned, int) and not shown else 0

    def _tell_confidence(self, told: ToldLogprobs, text: str, tokens: int, trace: Trace) -> None:
        """What the server tells of its confidence goes into the trace. Raises AttemptError if it does not."""
        if exact := self._specdec.get("confidence"):
            try:
                trace.confidence = [
                    (float(logprob), float(entropy), float(margin)) for logprob, entropy, margin in exact
                ]
                trace.characters = list(map(int, self._specdec["characters"]))
            except (TypeError, ValueError, KeyError) as error:
                raise AttemptError("broken stream", "what the server tells of its tokens cannot be read") from error
            return
        if tokens and not (told.triples and told.alternatives):
            what = "the log-probabilities of its tokens" if not told.triples else "the likeliest tokens (top_logprobs)"
            reason = f"it does not tell {what}, which logprobs: true asks for: leave that out, or ask another server"
            raise AttemptError("no logprobs", reason, Outlook.ENDPOINT)
        trace.confidence, trace.characters = told.triples, told.characters(text)

    def _engine(self, tokens: int, trace: Trace) -> tuple[list[int], int]:
        """What the server tells of its decoding: token ids and how many of the prompt's were left out. Steps and near
        ties go into the trace.
        """
        try:
            trace.steps = [Step(*map(int, step)) for step in self._specdec.get("steps") or ()]
            trace.near_ties = [(int(position), float(gap)) for position, gap in self._specdec.get("near_ties") or ()]
            ids = [int(token) for token in self._specdec.get("token_ids") or ()]
            truncated = int(self._specdec.get("truncated") or 0)
            if self._metrics and not trace.steps:
                trace.steps = steps_of_acceptance(self._metrics, tokens)
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise AttemptError("broken stream", "what the server tells of its decoding cannot be read") from error
        if ids and len(ids) != tokens:
            raise AttemptError("broken stream", f"the server counts {tokens} tokens and lists {len(ids)}")
        return ids, truncated


def steps_of_acceptance(metrics: Mapping[str, Any], tokens: int) -> list[Step]:
    """The verification steps of an answer of ``tokens`` tokens, from the acceptance that vLLM reports per request.

    Its detailed report has them one by one, its summary as a histogram, which is enough where all drafts were equally
    long; otherwise they are not known, and none are given. Steps without a draft, which it leaves out, follow at the
    end, and the last one is cut to what the output had room for, so that sums are those of the server.
    """
    accepted, drafted = metrics.get("per_step_accepted"), metrics.get("per_step_drafted")
    if not accepted or not drafted:
        longest, histogram = int(metrics["num_spec_tokens"]), metrics["acceptance_histogram"]
        if int(metrics["num_draft_tokens"]) != longest * sum(histogram):
            return []
        accepted = [number for number, count in enumerate(histogram) for _ in range(count)]
        drafted = [longest] * len(accepted)
    steps = [Step(int(d), int(a), int(a) + 1, int(d) + 1) for d, a in zip(drafted, accepted, strict=True)]
    # The prefill yields the first token and is no step.
    missing = tokens - 1 - sum(step.emitted for step in steps)
    steps += [Step(0, 0, 1, 1) for _ in range(missing)]
    for step in reversed(steps):
        cut = min(step.emitted - 1, max(0, -missing))
        step.emitted -= cut
        missing += cut
    return steps
