"""The edge model and the cloud model of Ianvs' joint inference: any back end, every answer in the journal."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from contextlib import nullcontext
from typing import Any, ClassVar

from ianvs_specdec.answers.baseline import compare
from ianvs_specdec.answers.configuration import Configuration
from ianvs_specdec.answers.journal import Entry, Journal
from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.errors import AnswerError, UserError
from ianvs_specdec.identity import FileDigests
from ianvs_specdec.llm.base import LLM
from ianvs_specdec.plugin import edge_first, observers
from ianvs_specdec.plugin.overlap import REQUESTS
from ianvs_specdec.plugin.response import Attempt, Response, response_of, turn_of
from ianvs_specdec.plugin.settings import SAME_AS_EDGE, Settings
from ianvs_specdec.run import current_concurrency, current_repeat, job_folder
from ianvs_specdec.types import Completion, Hints, Message, Query, Sampling, messages_of

log = logging.getLogger(__name__)

DIGESTS = "model_files.json"
STARTED = time.time() - time.perf_counter()
"""The clock time at which the monotonic clock was 0: when the clock is set, requests must not seem to overlap."""
SEEDS_APART = 1_000_003
"""Between the seeds of two samples of one answer; repeats have seeds one after the other."""
ALONE = 0.99
"""A request whose share of its time is at least this had no other one beside it."""


class RoutedModel:
    """One side of a cloud-edge pair.

    Hyperparameters:

    - ``model``: folder in Hugging Face format, name on the hub, or the name a server knows; ``backend``: see
      ``llm.BACKENDS``;
    - sampling: ``max_tokens``, ``temperature`` (0 = greedy), ``top_p``, ``top_k``, ``repetition_penalty``, ``seed``,
      ``stop``;
    - the options of the back end (see its class), of its drafting method among them. Options of other back ends are
      accepted and without effect, since a grid crosses them;
    - ``use_cache``: take answers from the journal (they are written there in any case);
    - ``price_prompt``, ``price_cached``, ``price_completion``: per million tokens;
    - ``logprobs``: tell how sure the model was of each token (``types.Trace.confidence``);
    - ``samples``: how many answers to ask for, of the edge model only: those after the first are drawn with
      ``samples_temperature`` and stand beside it under ``samples`` of the response, which counts their tokens, time
      and cost;
    - ``max_failures``: how many queries may remain without an answer, where the back end can tell that others may have
      one. Such a query is told in its response and in the journal.

    The model is loaded when the first answer is not in the journal. Errors are ``UserError`` with a readable message.
    Queries may be answered from several threads at once; a back end that takes one request at a time lets the others
    wait, and their waiting is part of their times.
    """

    side: ClassVar[str]

    def __init__(self, **hyperparameters: Any) -> None:
        self.settings = self._parse(hyperparameters)
        self._llm: LLM | None = None
        self._journal: Journal | None = None
        self._digests: FileDigests | None = None
        self._configurations: dict[Sampling, tuple[Configuration, list[Configuration]]] = {}
        self._failed = 0
        self._ended = False
        self._mutex = threading.RLock()
        self._turnstile = threading.Lock()

    @classmethod
    def check_hyperparameters(cls, hyperparameters: dict[str, Any]) -> None:
        """Raise UserError, with the ``key`` at fault, for hyperparameters that cannot work. Loads nothing."""
        cls._parse(hyperparameters)

    @classmethod
    def _parse(cls, hyperparameters: dict[str, Any]) -> Settings:
        return Settings.parse(hyperparameters)

    def backend(self) -> str:
        """The name of the back end, resolved."""
        return self.settings.backend

    def answer(self, data: Any) -> Response:
        """Answer all turns of a query, each with the earlier answers as context. ``data``: see ``benchmarks.rows``."""
        response = None
        observers.began(self.side, data)
        try:
            response = self._answer(data)
        finally:
            observers.ended(self.side, data, response)
        return response

    def _answer(self, data: Any) -> Response:
        query = query_of_row(data)
        self._open()
        # Another repeat draws other samples; greedy answers are asked for again all the same.
        sampling = dataclasses.replace(self.settings.sampling, seed=self.settings.sampling.seed + current_repeat())
        if query.temperature is not None:
            sampling = dataclasses.replace(sampling, temperature=float(query.temperature))
        attempt = self._converse(query, sampling)
        samples = [] if attempt.error else [self._converse(query, drawn) for drawn in self._drawn(sampling)]
        response = self._response(query, attempt, samples, sampling, data if isinstance(data, dict) else {})
        if attempt.error is not None:
            response["error"], response["failures"] = str(attempt.error), attempt.error.failures
            if not attempt.turns:
                response["cost"] = None
        response.row = data
        return response

    def _converse(self, query: Query, sampling: Sampling) -> Attempt:
        """All turns of a query, as far as they are answered."""
        attempt = Attempt()
        for index in range(len(query.turns)):
            messages = messages_of(query, [earlier.text for earlier in attempt.completions])
            try:
                completion, turn = self._turn(messages, sampling, query.hints(index))
            except AnswerError as reason:
                self._forgive(query, reason)
                attempt.error = reason
                break
            attempt.completions.append(completion)
            attempt.turns.append(turn)
        return attempt

    def _drawn(self, sampling: Sampling) -> list[Sampling]:
        """How the further samples are drawn: requests of their own, with seeds that no repeat has."""
        settings = self.settings
        return [
            dataclasses.replace(
                sampling,
                temperature=float(settings.samples_temperature),
                seed=sampling.seed + number * SEEDS_APART,
                logprobs=False,
            )
            for number in range(1, settings.samples)
        ]

    def cleanup(self) -> None:
        """Release the model. What was answered is in the journal already; nothing is asked any more."""
        with self._mutex:
            self._ended = True
        if self._llm is not None:
            self._llm.close()

    def _open(self) -> None:
        with self._mutex:
            if self._llm is not None:
                return
            name = self.backend()
            self.settings.check_backend(name)
            self._journal = Journal.of_job()
            self._digests = FileDigests(job_folder() / DIGESTS)
            self._llm = self.settings.llm(name)

    def _configured(self, sampling: Sampling) -> tuple[Configuration, list[Configuration]]:
        """What determines the answers with this sampling, and the same of the baseline, where there is one: of one
        that was asked for log-probabilities, too, and of one that was not, which says the same.
        """
        with self._mutex:
            if sampling not in self._configurations:
                assert self._llm is not None
                assert self._digests is not None
                own = self._configuration(self._llm.identity(self._digests), sampling)
                baseline = self._llm.baseline_identity(self._digests)
                demands = dict.fromkeys((sampling, dataclasses.replace(sampling, logprobs=False))) if baseline else ()
                self._configurations[sampling] = own, [self._configuration(baseline or {}, each) for each in demands]
            return self._configurations[sampling]

    def _configuration(self, identity: dict[str, Any], sampling: Sampling) -> Configuration:
        repeat = current_repeat()
        settings = {"sampling": sampling.to_json(), **({"repeat": repeat} if repeat else {})}
        return Configuration(self.settings.model, {**identity, **settings})

    def _turn(self, messages: list[Message], sampling: Sampling, hints: Hints) -> tuple[Completion, dict[str, Any]]:
        assert self._journal is not None
        journal = self._journal
        configuration, baselines = self._configured(sampling)
        key = configuration.key(messages, hints.prediction)
        with journal.asking(key):
            found = journal.get(key) if self.settings.use_cache else None
            entry = found or self._ask(configuration, messages, sampling, hints)
        baseline_keys = [baseline.key(messages, hints.prediction) for baseline in baselines]
        return entry.completion, turn_of(
            entry.completion,
            key=key,
            replayed=entry.replayed,
            cached=found is not None and not entry.replayed,
            hardware=entry.hardware,
            baseline=next(filter(None, (compare(journal, one, key, entry) for one in baseline_keys)), None),
        )

    def _ask(self, configuration: Configuration, messages: list[Message], sampling: Sampling, hints: Hints) -> Entry:
        assert self._llm is not None
        assert self._journal is not None
        llm, journal = self._llm, self._journal
        if self.settings.use_cache and (why := journal.explain_miss(configuration, messages)):
            log.warning("%s model: %s", self.side, why)
        journal.ensure_writable()
        with self._mutex:
            # A thread that was given up may come here with its next turn after the model has been released.
            if self._ended:
                raise UserError("the test case has ended")
            llm.load()
        # What the journal and loading take is no request's time: a long journal is read before the first one.
        issued, begun = time.perf_counter(), REQUESTS.begin()
        try:
            with nullcontext() if llm.concurrent else self._turnstile:
                waited = time.perf_counter() - issued
                completion = llm.generate(messages, sampling, hints=hints)
        except AnswerError as error:
            journal.put_failure(configuration.key(messages, hints.prediction), error, side=self.side)
            raise
        finally:
            busy = REQUESTS.end(begun)
        trace = completion.trace
        trace.busy = round(busy, 6) if busy < ALONE * (time.perf_counter() - issued) else None
        trace.issued, trace.memory = round(STARTED + issued, 6), llm.memory()
        trace.chunks = [(seconds + waited, tokens) for seconds, tokens in trace.chunks]
        hardware = journal.put(
            configuration,
            messages,
            completion,
            side=self.side,
            hardware=_circumstances(llm),
            prediction=hints.prediction,
        )
        # As the journal holds it, times rounded: a replay gives the same leaderboard to the last digit.
        return Entry(Completion.from_json(completion.to_json()), hardware, replayed=False)

    def _forgive(self, query: Query, reason: AnswerError) -> None:
        """Raise UserError if more queries have failed than may."""
        with self._mutex:
            self._failed += 1
            failed = self._failed
        permitted = self.settings.max_failures
        if failed > permitted:
            if not permitted:
                raise reason
            raise UserError(f"{failed} queries got no answer, max_failures permits {permitted}; the last: {reason}")
        log.warning("%s model: query %s got no answer: %s", self.side, query.id, reason)

    def _response(
        self, query: Query, attempt: Attempt, samples: list[Attempt], sampling: Sampling, data: dict[str, Any]
    ) -> Response:
        response = response_of(
            query,
            attempt.completions,
            attempt.turns,
            samples,
            side=self.side,
            model=self.settings.model,
            backend=self.backend(),
        )
        usage = response["usage"]
        # Coupled sampling, too, has one right output.
        coupled = self.settings.options.get("acceptance") == "coupled"
        response["greedy"] = sampling.greedy or coupled
        response["lossy"] = self._llm is not None and self._llm.lossy(sampling)
        cached = sum(c.cached_tokens for answered in (attempt, *samples) for c in answered.completions)
        response["cost"] = self.settings.cost(usage["prompt_tokens"], usage["completion_tokens"], cached)
        response["routing"] = data.get("routing")
        response["slo"] = data.get("slo")
        if "round" in data:
            response["round"] = data["round"]
        return response


def _circumstances(llm: LLM) -> dict[str, Any]:
    """What the timings depend on. With other rows beside it, an answer takes another time than alone."""
    concurrency = current_concurrency()
    return {**llm.hardware(), **({"concurrency": concurrency} if concurrency > 1 else {})}


class EdgeModel(RoutedModel):
    """The model on the edge, as Sedna's JointInference drives it: ``load``, then ``predict`` for each row."""

    side: ClassVar[str] = "edge"

    def __init__(self, **hyperparameters: Any) -> None:
        super().__init__(**hyperparameters)
        edge_first.announce(self)
        # Sedna wants an existing path before it calls load(), and copies what it finds there into the temporary folder.
        # Given a file, it copies nothing; and a framework that it does not know is the only one whose errors of load()
        # it passes on.
        os.environ["BACKEND_TYPE"] = "IANVS_SPECDEC"
        os.environ["model_path"] = os.path.abspath(__file__)  # noqa: SIM112 - the name is Sedna's

    def load(self, **kwargs: Any) -> None:
        """Called by Ianvs once per test case. Looks at the model's files; the weights wait until they are needed."""
        self._open()

    def predict(self, data: Any, **kwargs: Any) -> Response:
        if (given := edge_first.taken(data)) is not None:
            given["routing"] = data.get("routing")
            return given
        return self.answer(data)


class CloudModel(RoutedModel):
    """The model in the cloud: ``inference`` for each hard row."""

    side: ClassVar[str] = "cloud"

    @classmethod
    def _parse(cls, hyperparameters: dict[str, Any]) -> Settings:
        settings = Settings.parse(hyperparameters, follows_edge=True)
        if settings.samples > 1:
            reason = "samples is for the edge model: a router compares them to decide whether to ask the cloud"
            raise UserError(reason, key="samples")
        return settings

    def backend(self) -> str:
        """The back end's name; ``same-as-edge`` is resolved at the first query, when both models of the test case
        exist.
        """
        if self.settings.backend != SAME_AS_EDGE:
            return self.settings.backend
        edge = edge_first.current()
        if edge is None:
            raise UserError(f"backend {SAME_AS_EDGE}: this test case has no edge model", key="backend")
        return edge.backend()

    def inference(self, data: Any, **kwargs: Any) -> Response:
        given = edge_first.taken(data)
        response = self.answer(data)
        if given is not None:
            response[edge_first.KEY] = given
        return response
