"""Base class of the edge and the cloud model: any back end, all answers in the journal."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.benchmarks.rows import DataRow, query_of_row
from ianvs_specdec.benchmarks.scorers import LOGPROB
from ianvs_specdec.common.errors import AnswerError, UserError, visible, warn_once
from ianvs_specdec.common.types import Completion, Hints, Message, Query, Sampling, messages_of
from ianvs_specdec.plugin import observers
from ianvs_specdec.plugin.answer_warnings import AnswerWarnings
from ianvs_specdec.plugin.requests import EarlyExit, RequestConfig, RequestConfigs, Requests
from ianvs_specdec.plugin.response import Attempt, response_of, turn_of, with_letter
from ianvs_specdec.plugin.routing_time import restore_routing_time
from ianvs_specdec.plugin.row_checks import RowChecks, refused_by_template, warn_unread_variables, without_letters
from ianvs_specdec.plugin.settings import SAME_AS_EDGE, ModelSettings
from ianvs_specdec.plugin.timings import Timings
from ianvs_specdec.records.baseline import compare
from ianvs_specdec.records.continuation import saved_tokens
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.records.response import Response
from ianvs_specdec.records.run import current_repeat, job_folder

log = logging.getLogger(__name__)

DIGESTS = "model_files.json"
SEEDS_APART = 1_000_003
"""Difference between the seeds of two samples; those of repeats are consecutive."""


class RoutedModel(RowChecks):
    """The edge model or the cloud model.

    Hyperparameters: ``GeneralSettings``, ``Sampling``, and the options of all back ends (a grid crosses them with the
    back ends; those of another back end have no effect).

    The model is loaded at the first answer that is not in the journal. Errors are ``UserError``. Thread-safe: for a
    back end that serves one request at a time the others wait, and their times include the wait.
    """

    side: ClassVar[str]

    def __init__(self, **hyperparameters: Any) -> None:
        self.settings = self._parse(hyperparameters)
        self._llm: LLM | None = None
        self._journal: Journal | None = None
        self._configs: RequestConfigs | None = None
        self._requests: Requests | None = None
        self._samplings: dict[tuple[int, float, bool], Sampling] = {}
        self._failed = 0
        self._ended: UserError | None = None
        self._warnings = AnswerWarnings(self.side)
        self._timings = Timings()
        self._mutex = threading.RLock()

    @classmethod
    def check_hyperparameters(cls, hyperparameters: dict[str, Any]) -> None:
        """Raise UserError with the ``key`` of a wrong hyperparameter or unusable model files. Loads nothing."""
        cls._parse(hyperparameters).check_files()

    @classmethod
    def check_chats(cls, hyperparameters: dict[str, Any], rows: Iterable[DataRow]) -> Iterator[tuple[str, str]]:
        """Place and reason of rows that this model cannot answer. With ``max_failures``, they are logged instead."""
        given = cls._parse(hyperparameters)
        llm = given.llm("autoregressive" if given.backend == SAME_AS_EDGE else given.backend)
        rows = rows if llm.letters else list(rows)
        yield from without_letters(llm, rows)
        warn_unread_variables(llm, given.sampling)
        for place, reason in refused_by_template(llm, given.sampling, rows):
            if given.general.max_failures:
                warn_once(f"{place}: {reason}")
            else:
                yield place, reason

    @classmethod
    def _parse(cls, hyperparameters: dict[str, Any]) -> ModelSettings:
        return ModelSettings.parse(hyperparameters)

    def backend(self) -> str:
        """The name of the back end."""
        return self.settings.backend

    def answer(self, data: Any, *, repeat: int | None = None, early: EarlyExit | None = None) -> Response:
        """Answer all turns of a query, each with the earlier answers as context. ``data``: see ``benchmarks.rows``.

        Each ``repeat`` has its own answers and seed; None is the current one. If the first answer stops ``early``, the
        response has ``stopped`` and no further request is sent; otherwise a second request continues it. Raises
        UserError for ``early`` with sampling.
        """
        response = None
        observers.began(self.side, data)
        try:
            response = self._answer(data, current_repeat() if repeat is None else repeat, early)
        finally:
            observers.ended(self.side, data, response)
        return response

    def _answer(self, data: Any, repeat: int, early: EarlyExit | None) -> Response:
        query = query_of_row(data)
        self._open()
        sampling = self._sampling(query, repeat)
        attempt = self._converse(query, self._config(sampling, repeat), early)
        stopped = early is not None and early.stopped
        drawn = self._drawn(query, sampling) if attempt.error is None and not stopped else ()
        samples = [self._converse(query, self._config(one, repeat)) for one in drawn]
        response = self._response(query, attempt, samples, sampling, data if isinstance(data, dict) else {})
        if early is not None and stopped:
            response["stopped"] = self._stopped(query, self._config(sampling, repeat), early)
            response.early = early
        if attempt.error is not None:
            response["error"], response["failures"] = str(attempt.error), attempt.error.failures
            if not attempt.turns:
                response["cost"] = None
        response.row = data
        return response

    def _sampling(self, query: Query, repeat: int) -> Sampling:
        own = self.settings.sampling
        temperature = own.temperature if query.temperature is None else float(query.temperature)
        # Each repeat has another seed. Greedy answers are generated again, too.
        changes = own.seed + repeat, temperature, own.logprobs or query.scorer == LOGPROB
        if changes not in self._samplings:
            seed, _, logprobs = changes
            self._samplings[changes] = dataclasses.replace(own, seed=seed, temperature=temperature, logprobs=logprobs)
        return self._samplings[changes]

    def _converse(self, query: Query, config: RequestConfig, early: EarlyExit | None = None) -> Attempt:
        """Answer the turns of a query until one fails."""
        attempt = Attempt()
        for index in range(len(query.turns)):
            if early is not None and early.stopped:
                break
            messages = messages_of(query, [earlier.text for earlier in attempt.completions])
            try:
                completion, turn = self._turn(messages, config, query.hints(index), None if index else early)
                if query.scorer == LOGPROB and index == len(query.turns) - 1:
                    completion = with_letter(query, completion)
                    turn["completion"] = completion.text
            except AnswerError as reason:
                self._forgive(query, reason)
                attempt.error = reason
                break
            attempt.completions.append(completion)
            attempt.turns.append(turn)
        return attempt

    def _drawn(self, query: Query, sampling: Sampling) -> Iterator[Sampling]:
        """Sampling parameters of the further samples, whose seeds differ from those of all repeats."""
        temperature = float(self.settings.general.samples_temperature)
        for number in range(1, self.settings.general.samples):
            seed = sampling.seed + number * SEEDS_APART
            yield dataclasses.replace(sampling, temperature=temperature, seed=seed, logprobs=query.scorer == LOGPROB)

    def cleanup(self) -> None:
        """Release the model. Later requests raise UserError."""
        with self._mutex:
            self._ended = UserError("the test case has ended")
        if self._llm is not None:
            self._llm.close()
        if self._journal is not None:
            self._journal.release()

    def environment_details(self) -> Any:
        """Conditions of the timings, for ``environment.json`` of our host."""
        with self._mutex:
            template_time = self._configs.template_time if self._configs is not None else ""
            return self._timings.conditions(self._journal, template_time) if self._journal is not None else {}

    def _open(self) -> None:
        with self._mutex:
            if self._llm is not None:
                return
            name = self.backend()
            llm = self.settings.checked(name)
            self._journal = Journal.of_job()
            self._configs = RequestConfigs(self.settings.general.model, llm, FileDigests(job_folder() / DIGESTS))
            self._requests = Requests(
                self.side,
                llm,
                self._journal,
                self._configs,
                self._ready,
                use_cache=self.settings.general.use_cache,
                coupled=self._coupled,
            )
            self._llm = llm

    def _config(self, sampling: Sampling, repeat: int) -> RequestConfig:
        assert self._configs is not None
        return self._configs.of(sampling, repeat)

    def _turn(
        self, messages: list[Message], config: RequestConfig, hints: Hints, early: EarlyExit | None
    ) -> tuple[Completion, dict[str, Any]]:
        assert self._journal is not None
        assert self._llm is not None
        assert self._requests is not None
        journal = self._journal
        with journal.request_lock(config.own.key(messages, hints.prediction)):
            if early is None:
                entry, key, known = self._requests.whole(config, messages, hints)
            else:
                entry, key, known = self._requests.as_far(config, messages, hints, early)
        whole = early is None or not early.stopped
        with self._mutex:
            self._timings.add(entry)
        baseline_keys = (baseline.key(messages, hints.prediction) for baseline in config.baselines)
        baseline = next(filter(None, (compare(journal, one, key, entry, whole) for one in baseline_keys)), None)
        self._warnings.add(entry.completion, self._llm, baseline)
        return entry.completion, turn_of(
            entry.completion,
            key=key,
            replayed=entry.replayed,
            cached=known and not entry.replayed,
            hardware=entry.hardware,
            baseline=baseline,
        )

    @property
    def _coupled(self) -> bool:
        """Whether samples are reproducible, too."""
        return self.settings.options.get("acceptance") == "coupled"

    def _stopped(self, query: Query, config: RequestConfig, early: EarlyExit) -> dict[str, Any]:
        """``tokens`` of a stopped answer, and the tokens ``saved`` if the journal has the whole answer, of this back
        end or without speculation (else None)."""
        assert self._journal is not None
        messages, prediction = messages_of(query, []), query.hints(0).prediction
        keys = [one.key(messages, prediction) for one in (config.own, *config.baselines)]
        return {"tokens": early.tokens, "saved": saved_tokens(self._journal, keys, early.tokens)}

    def _ready(self, config: RequestConfig, messages: list[Message]) -> LLM:
        """The loaded model, after a check that the journal is writable."""
        assert self._llm is not None
        assert self._journal is not None
        llm, journal = self._llm, self._journal
        if self.settings.general.use_cache and (why := journal.explain_miss(config.own, messages, self.side)):
            log.warning("%s model: %s", self.side, why)
        journal.ensure_writable()
        with self._mutex:
            # An abandoned thread may start its next turn after the cleanup.
            if self._ended is not None:
                raise self._ended
            try:
                llm.load()
            except UserError as refused:
                # Waiting threads must not try again, even with max_failures.
                self._ended = UserError(str(refused), key=refused.key)
                raise self._ended from refused
        return llm

    def _forgive(self, query: Query, reason: AnswerError) -> None:
        """Count a failed query. Raises UserError above ``max_failures``."""
        with self._mutex:
            self._failed += 1
            failed = self._failed
        permitted = self.settings.general.max_failures
        if failed > permitted:
            if not permitted:
                raise reason
            raise UserError(f"{failed} queries got no answer, max_failures permits {permitted}; the last: {reason}")
        log.warning("%s model: query %s got no answer: %s", self.side, visible(query.id), reason)

    def _response(
        self, query: Query, attempt: Attempt, samples: list[Attempt], sampling: Sampling, data: dict[str, Any]
    ) -> Response:
        response = response_of(
            query,
            attempt.completions,
            attempt.turns,
            samples,
            side=self.side,
            model=self.settings.general.model,
            backend=self.backend(),
        )
        usage = response["usage"]
        response["greedy"] = sampling.greedy or self._coupled
        response["lossy"] = self._llm is not None and self._llm.lossy(sampling)
        cached = sum(c.cached_tokens for answered in (attempt, *samples) for c in answered.completions)
        response["cost"] = self.settings.cost(usage["prompt_tokens"], usage["completion_tokens"], cached)
        assert self._journal is not None
        response["routing"] = restore_routing_time(data.get("routing"), response, self._journal)
        response["slo"] = data.get("slo")
        response.update({name: data[name] for name in ("round", "sandbox") if name in data})
        return response
