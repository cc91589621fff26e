"""One request after the other: answers that the journal has, and those that a back end is asked for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import Lock
from typing import Any, NamedTuple

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Completion, Hints, Message
from ianvs_specdec.plugin.energy import MACHINE
from ianvs_specdec.plugin.request_config import RequestConfig, RequestConfigs
from ianvs_specdec.plugin.side_warnings import TruncationWarning
from ianvs_specdec.plugin.timings import REQUESTS, stamp, timing_conditions
from ianvs_specdec.records.continuation import first_tokens, joined
from ianvs_specdec.records.journal import Entry, Journal


class Found(NamedTuple):
    """An answer, its key in the journal, and whether it was there already."""

    entry: Entry
    key: str
    known: bool


class EarlyExit:
    """Of one query: whether its answer stops after ``tokens`` tokens.

    ``decide`` is given an answer of that length, unless the whole answer is no longer. ``stopped`` is what it said.
    """

    def __init__(self, tokens: int, decide: Callable[[Completion], bool]) -> None:
        self.tokens, self._decide = tokens, decide
        self.begun: Entry | None = None
        """The first tokens, once they are known."""
        self.stopped = False

    def stops(self, begun: Entry) -> bool:
        """Whether the answer that is ``begun`` stops here."""
        self.begun = begun
        self.stopped = self._decide(begun.completion)
        return self.stopped

    def overrule(self) -> None:
        """The whole answer is wanted in any case."""
        self.stopped = False
        self._decide = lambda begun: False


class Requests:
    """Those of one side. ``ready`` returns the model, loaded, once the journal can keep what it says; ``coupled``: its
    samples are reproducible. Thread-safe."""

    def __init__(
        self,
        side: str,
        llm: LLM,
        journal: Journal,
        configs: RequestConfigs,
        truncation_warning: TruncationWarning,
        ready: Callable[[RequestConfig, list[Message]], LLM],
        *,
        use_cache: bool,
        coupled: bool,
    ) -> None:
        self._side, self._llm, self._journal, self._configs = side, llm, journal, configs
        self._truncation_warning, self._ready = truncation_warning, ready
        self._use_cache, self._coupled = use_cache, coupled
        self._turnstile = Lock()

    def _known(self, config: RequestConfig, messages: list[Message], hints: Hints) -> Found | None:
        """The answer, where the journal has it and it may be taken from there."""
        key = config.own.key(messages, hints.prediction)
        entry = self._truncation_warning.serving(self._journal.get(key), self._llm) if self._use_cache else None
        return None if entry is None else Found(entry, key, known=True)

    def whole(self, config: RequestConfig, messages: list[Message], hints: Hints) -> Found:
        """The whole answer."""
        return self._known(config, messages, hints) or self._ask(
            config, messages, hints, lambda llm: llm.generate(messages, config.sampling, hints=hints)
        )

    def as_far(self, config: RequestConfig, messages: list[Message], hints: Hints, early: EarlyExit) -> Found:
        """The first tokens of the answer where it stops there, else the whole answer."""
        sampling, tokens = config.sampling, early.tokens
        if not (sampling.greedy or self._coupled):
            raise UserError(
                f"an answer that is sampled (temperature: {sampling.temperature:g}) cannot be continued: set "
                "temperature: 0, or acceptance: coupled",
                key="decide_after",
            )
        if (found := self._known(config, messages, hints)) is not None:
            first = first_tokens(found.entry.completion, tokens)
            if first is None:
                return found
            begun = dataclasses.replace(found.entry, completion=first)
            return found._replace(entry=begun) if early.stops(begun) else found
        if tokens >= sampling.max_tokens:
            return self.whole(config, messages, hints)
        found = self._begun(config, messages, hints, early)
        begun = found.entry
        if begun.completion.finish_reason == "stop" or early.stops(begun):
            return found
        resumed = self._configs.of(sampling, config.repeat, tokens)
        return self._known(resumed, messages, hints) or self._ask(
            resumed,
            messages,
            hints,
            lambda llm: llm.resume(messages, sampling, begun.completion.token_ids, hints),
            begun=begun.completion,
        )

    def _begun(self, config: RequestConfig, messages: list[Message], hints: Hints, early: EarlyExit) -> Found:
        """The first tokens of the answer, or all of it where it is no longer."""
        sampling, tokens = config.sampling, early.tokens
        shorter = self._configs.of(sampling.first(tokens), config.repeat)
        if early.begun is not None:
            return Found(early.begun, shorter.own.key(messages, hints.prediction), known=True)
        return self._known(shorter, messages, hints) or self._ask(
            shorter, messages, hints, lambda llm: llm.begin(messages, sampling, tokens, hints), whole=config
        )

    def _ask(
        self,
        config: RequestConfig,
        messages: list[Message],
        hints: Hints,
        call: Callable[[LLM], Completion],
        *,
        begun: Completion | None = None,
        whole: RequestConfig | None = None,
    ) -> Found:
        """Generate an answer and store it under ``config``, or under ``whole`` if the answer ended within its first
        tokens. ``begun``: the completion that it continues."""
        llm, journal = self._ready(config, messages), self._journal
        runs_on = timing_conditions(llm)
        # What the journal and loading take is no request's time: a long journal is read before the first one.
        energy = MACHINE.begin(runs_on)
        request = REQUESTS.begin()
        try:
            with nullcontext() if llm.concurrent else self._turnstile:
                waited = time.perf_counter() - request.issued
                completion = call(llm)
        except AnswerError as error:
            journal.put_failure(config.own.key(messages, hints.prediction), error, side=self._side)
            raise
        finally:
            under_way, used = REQUESTS.end(request), MACHINE.end(energy)
        stamp(completion.trace, llm, issued=request.issued, waited=waited, under_way=under_way, energy=used)
        completion = completion if begun is None else joined(begun, completion)
        own = whole.own if whole is not None and completion.finish_reason == "stop" else config.own
        told: dict[str, Any] = {"side": self._side, "hardware": runs_on, "prediction": hints.prediction}
        hardware = journal.put(own, messages, completion, **told)
        kept = Entry(completion, hardware, replayed=False)
        return Found(kept, own.key(messages, hints.prediction), known=False)
