"""One request's answer, put together from the lines of vLLM's worker."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ianvs_specdec.errors import AnswerError, visible
from ianvs_specdec.llm.base import OnChunk
from ianvs_specdec.llm.prompts import Chat, TextStream
from ianvs_specdec.llm.told import (
    LARGEST_ID,
    MOST_DRAFTED,
    ImplausibleNumber,
    alternative,
    listed,
    logprob,
    real,
    whole,
)
from ianvs_specdec.llm.top_logprobs import Triple, triple
from ianvs_specdec.types import Completion, Sampling, Step, Trace

LONGEST_REASON = 80
"""Characters of what vLLM says about how an answer ended."""
CLOCKS_APART = 1.0
"""Seconds by which a time may lie in the future."""


class PendingAnswer:
    """One request's answer, put together from the lines of the worker."""

    def __init__(self, chat: Chat, sampling: Sampling, on_chunk: OnChunk | None, *, speculative: bool) -> None:
        from ianvs_specdec.decoding.stopping import StopStrings

        self._started = time.monotonic()
        self._most = sampling.max_tokens
        self._chat = chat
        self._stop = StopStrings(chat.text, sampling.stop) if sampling.stop else None
        self._emit = TextStream(chat.text, sampling.stop, on_chunk) if on_chunk is not None else None
        self._ids: list[int] = []
        self._received: list[int] = []
        self._confidence: list[Triple] | None = [] if sampling.logprobs else None
        self._drafts: list[list[int]] | None = None if speculative else []
        self._trace = Trace()
        self._reason: str | None = None

    def take(self, line: Mapping[str, Any]) -> bool:
        """Add what a line brought. False when the output is complete, whatever else comes. Raises AnswerError for what
        no engine gives.
        """
        try:
            return self._take(line)
        except (ValueError, TypeError, KeyError) as error:
            kind = ImplausibleNumber.KIND if isinstance(error, ImplausibleNumber) else "broken line"
            failure = (time.monotonic() - self._started, kind)
            raise AnswerError(f"vLLM's worker tells what cannot be true: {error}", [failure]) from error

    def _take(self, line: Mapping[str, Any]) -> bool:
        if line["drafts"] is not None:
            pairs = listed(line["drafts"], "drafts", self._most)
            self._drafts = [
                [whole(drafted, "a draft", MOST_DRAFTED), whole(accepted, "what a draft gave", drafted)]
                for drafted, accepted in pairs
            ]
        told = listed(line["tokens"], "tokens", self._most + MOST_DRAFTED - len(self._ids))
        if self._reason is None and told:
            before = len(self._ids)
            self._ids += [whole(token, "a token id", LARGEST_ID) for token in told]
            self._received.append(len(told))
            if self._confidence is not None:
                likely = listed(line["logprobs"], "logprobs", len(told))
                self._confidence += [triple(logprob(own), [alternative(p) for p in best]) for own, best in likely]
            kept = self._stop(self._ids) if self._stop is not None else None
            if kept is not None:
                del self._ids[kept:]
                self._reason = "stop"
            new = self._ids[before:]
            # Both clocks are one, but a worker may be another program than ours.
            at = real(line["time"], "a time", self._started, time.monotonic() + CLOCKS_APART)
            self._trace.chunks.append((at - self._started, len(new)))
            if self._emit is not None:
                self._emit(new)
        if line["finish"] is not None and not isinstance(line["finish"], str):
            raise TypeError("how the answer ended is no text")
        self._reason = self._reason or line["finish"]
        return self._reason is None

    def completion(self, prompt_tokens: int, truncated: int) -> Completion:
        if self._reason not in ("stop", "length"):
            reason = visible(str(self._reason)[:LONGEST_REASON])
            failure = (time.monotonic() - self._started, reason)
            raise AnswerError(f"vLLM gave the request up after {len(self._ids)} tokens: {reason}", [failure])
        text = self._chat.text(self._ids)
        text = self._stop.trim(text) if self._stop is not None else text
        if self._emit is not None:
            self._emit.finish(text)
        if self._drafts is not None:
            self._trace.steps = steps_of(self._received, [n for _, n in self._trace.chunks], self._drafts)
        ids = self._ids
        if self._confidence is not None:
            self._trace.confidence = self._confidence[: len(ids)]
            self._trace.characters = [len(piece) for piece in self._chat.pieces(ids)]
        return Completion(text, ids, prompt_tokens, len(ids), self._reason, self._trace, truncated)


def steps_of(received: Sequence[int], kept: Sequence[int], drafts: Sequence[Sequence[int]]) -> list[Step]:
    """The verification steps of a request from the token counts of its chunks and vLLM's pairs (drafted, accepted).

    ``received`` counts the tokens of each engine step, the prefill's first; ``kept`` those of them that belong to the
    output. The last chunk may have lost tokens after the one that ended the output, in vLLM or here. Pairs of steps
    that came after it are left out. Empty where chunks and pairs do not belong together.
    """
    steps, waiting = [], list(drafts)
    for index in range(1, len(received)):
        accepted = received[index] - 1
        last = index == len(received) - 1
        if waiting and (waiting[0][1] == accepted or (last and waiting[0][1] > accepted)):
            pair = waiting.pop(0)
            steps.append(Step(pair[0], pair[1], kept[index], pair[0] + 1))
        elif accepted == 0:
            steps.append(Step(0, 0, kept[index], 1))
        else:
            return []
    return steps
