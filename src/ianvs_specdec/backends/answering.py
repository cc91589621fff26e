"""Between a chat and a worker that deals in token ids: the model's tokenizer, and an answer from the worker's lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ianvs_specdec.backends.base import OnChunk
from ianvs_specdec.backends.prompts import Chat, TextOutput, end_ids, vocabulary_of
from ianvs_specdec.backends.top_logprobs import Triple, triple
from ianvs_specdec.backends.untrusted import (
    LARGEST_ID,
    MOST_DRAFTED,
    ImplausibleNumber,
    alternative,
    listed,
    logprob,
    real,
    whole,
)
from ianvs_specdec.common.errors import AnswerError, visible
from ianvs_specdec.common.types import Completion, Sampling, Step, Trace
from ianvs_specdec.models.loading import loading_error
from ianvs_specdec.models.rotary import window_of

LONGEST_REASON = 80
"""Characters of what a worker says about how an answer ended."""
CLOCKS_APART = 1.0
"""Seconds by which a time may lie in the future."""

Steps = Callable[[Sequence[int], Sequence[int], Any], list[Step]]


def chat_of(folder: Path, model: str, max_model_len: int) -> tuple[Chat, list[int]]:
    """The model's tokenizer with the window that is left to it, and the ids that end an output."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        try:
            generation = transformers.GenerationConfig.from_pretrained(folder)
        except OSError:
            generation = transformers.GenerationConfig.from_model_config(config)
    except Exception as error:
        raise loading_error(f"the tokenizer of {model}", error, "model") from error
    window = min(window_of(config.get_text_config()) or max_model_len, max_model_len)
    return Chat(tokenizer, window, vocabulary_of(config)), sorted(end_ids(generation, tokenizer))


class PendingAnswer:
    """One request's answer, put together from the lines of a worker: ``time`` (of ``time.monotonic``), ``tokens`` (new
    ids), ``finish``, ``drafts`` (with the last line, what was drafted in each step) and, where sampling asks for them,
    ``logprobs``.

    ``steps`` makes the verification steps of the token counts that came with each line, of those that belong to the
    output, and of the drafts. ``speculative`` says whether there are drafts to wait for.
    """

    def __init__(
        self, name: str, chat: Chat, sampling: Sampling, on_chunk: OnChunk | None, steps: Steps, *, speculative: bool
    ) -> None:
        self._started = time.monotonic()
        self._most = sampling.max_tokens
        self._name, self._chat, self._steps = name, chat, steps
        self._output = TextOutput(chat, sampling, on_chunk)
        self._ids: list[int] = []
        self._received: list[int] = []
        self._confidence: list[Triple] | None = [] if sampling.logprobs else None
        self._drafts: Any = None if speculative else []
        self._trace = Trace()
        self._reason: str | None = None

    def follow(self, prompt_ids: list[int]) -> None:
        self._output.follow(prompt_ids)

    def take(self, line: Mapping[str, Any]) -> bool:
        """Add what a line brought. False when the output is complete, whatever else comes. Raises AnswerError for what
        no engine gives.
        """
        with self._plausible():
            return self._take(line)

    @contextmanager
    def _plausible(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            kind = ImplausibleNumber.KIND if isinstance(error, ImplausibleNumber) else "broken line"
            failure = (time.monotonic() - self._started, kind)
            raise AnswerError(f"{self._name}'s worker returned an invalid value: {error}", [failure]) from error

    def _take(self, line: Mapping[str, Any]) -> bool:
        if line["drafts"] is not None:
            self._drafts = line["drafts"]
        told = listed(line["tokens"], "tokens", self._most + MOST_DRAFTED - len(self._ids))
        if self._reason is None and told:
            before = len(self._ids)
            self._ids += [whole(token, "a token id", LARGEST_ID) for token in told]
            self._received.append(len(told))
            if self._confidence is not None:
                likely = listed(line["logprobs"], "logprobs", len(told))
                self._confidence += [triple(logprob(own), [alternative(p) for p in best]) for own, best in likely]
            kept = self._output.stop(self._ids) if self._output.stop is not None else None
            if kept is not None:
                del self._ids[kept:]
                self._reason = "stop"
            new = self._ids[before:]
            # Both clocks are one, but a worker may be another program than ours.
            at = real(line["time"], "a time", self._started, time.monotonic() + CLOCKS_APART)
            self._trace.chunks.append((at - self._started, len(new)))
            if self._output.emit is not None:
                self._output.emit(new)
        if line["finish"] is not None and not isinstance(line["finish"], str):
            raise TypeError("the finish reason is not a string")
        self._reason = self._reason or line["finish"]
        return self._reason is None

    def completion(self, prompt_tokens: int, truncated: int) -> Completion:
        if self._reason not in ("stop", "length"):
            reason = visible(str(self._reason)[:LONGEST_REASON])
            failure = (time.monotonic() - self._started, reason)
            given = f"after {len(self._ids)} tokens: {reason}"
            raise AnswerError(f"{self._name} gave the request up {given}", [failure])
        text = self._output.finish(self._ids)
        if self._drafts is not None:
            with self._plausible():
                self._trace.steps = self._steps(self._received, [n for _, n in self._trace.chunks], self._drafts)
        ids = self._ids
        if self._confidence is not None:
            self._trace.confidence = self._confidence[: len(ids)]
        self._output.tell(ids, text, self._trace, self._confidence is not None)
        return Completion(text, ids, prompt_tokens, len(ids), self._reason, self._trace, truncated)
