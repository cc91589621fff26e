"""Requests of one side: their configurations, and answers from the journal or a back end."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.prompts import chat_template
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling
from ianvs_specdec.models.templates import with_template_time
from ianvs_specdec.plugin.timings import MACHINE, REQUESTS, stamp, timing_conditions
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.continuation import first_tokens, joined
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.records.journal import Entry, Journal
from ianvs_specdec.records.run import job_folder


@dataclass(frozen=True)
class RequestConfig:
    """Sampling parameters of a request. ``own``: its configuration in the journal; ``baselines``: those of answers
    without speculation, with and without log-probabilities."""

    sampling: Sampling
    repeat: int
    own: Configuration
    baselines: tuple[Configuration, ...]


class RequestConfigs:
    """The request configurations of ``llm``, which the user calls ``model``. ``template_time``: the time for the chat
    template, "" if it does not read the clock. Thread-safe."""

    def __init__(self, model: str, llm: LLM, digests: FileDigests) -> None:
        self._model, self._llm, self._digests = model, llm, digests
        self._template, self.template_time = chat_template(llm), ""
        self._known: dict[tuple[Sampling, int, int], RequestConfig] = {}
        self._mutex = threading.Lock()

    def of(self, sampling: Sampling, repeat: int, resumed: int = 0) -> RequestConfig:
        """``resumed``: number of tokens of the first request that this one continues. Answers of each ``repeat`` and
        ``resumed`` are separate."""
        key = sampling, repeat, resumed
        with self._mutex:
            if key not in self._known:
                self._known[key] = self._create(*key)
            return self._known[key]

    def _create(self, sampling: Sampling, repeat: int, resumed: int) -> RequestConfig:
        sampling = with_template_time(sampling, self._template, job_folder())
        self.template_time = sampling.template_time
        identity, baseline = self._llm.identity(self._digests), self._llm.baseline_identity(self._digests)
        own = self._configuration({**identity, **({"resumed": resumed} if resumed else {})}, sampling, repeat)
        baselines = []
        if baseline:
            variants = dict.fromkeys((sampling, dataclasses.replace(sampling, logprobs=False)))
            baselines = [self._configuration(baseline, variant, repeat) for variant in variants]
        return RequestConfig(sampling, repeat, own, tuple(baselines))

    def _configuration(self, identity: dict[str, Any], sampling: Sampling, repeat: int) -> Configuration:
        settings = {"sampling": sampling.to_json(), **({"repeat": repeat} if repeat else {})}
        return Configuration(self._model, {**identity, **settings}, dict(self._digests.files))


class Found(NamedTuple):
    """An answer, its key in the journal, and whether the journal had it."""

    entry: Entry
    key: str
    known: bool


class EarlyExit:
    """Decides whether the answer to a query stops after ``tokens`` tokens.

    ``decide`` gets the first ``tokens`` tokens; it is not called for answers that are not longer. ``stopped``: its
    decision.
    """

    def __init__(self, tokens: int, decide: Callable[[Completion], bool]) -> None:
        self.tokens, self._decide = tokens, decide
        self.begun: Entry | None = None
        """The first tokens, when known."""
        self.stopped = False

    def stops(self, begun: Entry) -> bool:
        """Decide about the first tokens ``begun``."""
        self.begun = begun
        self.stopped = self._decide(begun.completion)
        return self.stopped

    def overrule(self) -> None:
        """Never stop."""
        self.stopped = False
        self._decide = lambda begun: False


class Requests:
    """The requests of one side. ``ready`` checks the journal and returns the loaded model; ``coupled``: its samples are
    reproducible. Thread-safe."""

    def __init__(
        self,
        side: str,
        llm: LLM,
        journal: Journal,
        configs: RequestConfigs,
        ready: Callable[[RequestConfig, list[Message]], LLM],
        *,
        use_cache: bool,
        coupled: bool,
    ) -> None:
        self._side, self._llm, self._journal, self._configs = side, llm, journal, configs
        self._ready, self._use_cache, self._coupled = ready, use_cache, coupled
        self._one_at_a_time = threading.Lock()

    def _known(self, config: RequestConfig, messages: list[Message], hints: Hints) -> Found | None:
        """The journal's answer, unless it may not be used."""
        key = config.own.key(messages, hints.prediction)
        entry = self._journal.get(key) if self._use_cache else None
        # An answer to a truncated prompt needs the permission to truncate.
        if entry is None or (entry.completion.truncated and self._llm.truncate_prompts is False):
            return None
        return Found(entry, key, known=True)

    def whole(self, config: RequestConfig, messages: list[Message], hints: Hints) -> Found:
        """The whole answer."""
        return self._known(config, messages, hints) or self._ask(
            config, messages, hints, lambda llm: llm.generate(messages, config.sampling, hints=hints)
        )

    def as_far(self, config: RequestConfig, messages: list[Message], hints: Hints, early: EarlyExit) -> Found:
        """The first tokens of the answer if it stops there, else the whole answer."""
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
        """The first tokens of the answer, or all of it if it is not longer."""
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
        conditions = timing_conditions(llm)
        # The time of the journal and of loading belongs to no request.
        energy = MACHINE.begin(conditions)
        request = REQUESTS.begin()
        try:
            with nullcontext() if llm.concurrent else self._one_at_a_time:
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
        hardware = journal.put(
            own, messages, completion, side=self._side, hardware=conditions, prediction=hints.prediction
        )
        entry = Entry(completion, hardware, replayed=False)
        return Found(entry, own.key(messages, hints.prediction), known=False)
