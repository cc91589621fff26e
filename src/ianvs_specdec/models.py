"""The edge model and the cloud model of Ianvs' joint inference: any back end, every answer in the journal."""

from __future__ import annotations

import logging
import os
import weakref
from typing import Any, ClassVar

from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.errors import UserError
from ianvs_specdec.identity import FileDigests
from ianvs_specdec.journal import Configuration, Entry, Journal, job_folder
from ianvs_specdec.llm.base import LLM
from ianvs_specdec.response import Response, response_of, turn_of
from ianvs_specdec.settings import SAME_AS_EDGE, Settings
from ianvs_specdec.types import Completion, Hints, Message, Query, messages_of

log = logging.getLogger(__name__)

DIGESTS = "model_files.json"


class RoutedModel:
    """One side of a cloud-edge pair.

    Hyperparameters:

    - ``model``: folder in Hugging Face format, name on the hub, or the name a server knows; ``backend``: see
      ``llm.BACKENDS``;
    - sampling: ``max_tokens``, ``temperature`` (0 = greedy), ``top_p``, ``top_k``, ``repetition_penalty``, ``seed``,
      ``stop``;
    - local back ends: ``dtype``, ``device``, ``threads``; back end api: ``api_base_url``, ``api_key_env``,
      ``api_timeout``, ``api_deadline``, ``api_retries``; the options of the back end's drafting method. Options of
      other back ends are accepted and without effect, since a grid crosses them;
    - ``use_cache``: take answers from the journal (they are written there in any case);
    - ``price_prompt``, ``price_completion``: per million tokens.

    The model is loaded when the first answer is not in the journal. Errors are ``UserError`` with a readable message.
    """

    side: ClassVar[str]

    def __init__(self, **hyperparameters: Any) -> None:
        self.settings = self._parse(hyperparameters)
        self._llm: LLM | None = None
        self._journal: Journal | None = None
        self._configuration: Configuration | None = None
        self._baseline: Configuration | None = None

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
        query = query_of_row(data)
        self._open()
        completions: list[Completion] = []
        turns: list[dict[str, Any]] = []
        for index in range(len(query.turns)):
            messages = messages_of(query, [earlier.text for earlier in completions])
            completion, turn = self._turn(messages, query.hints(index))
            completions.append(completion)
            turns.append(turn)
        response = self._response(query, completions, turns, data if isinstance(data, dict) else {})
        response.row = data
        return response

    def cleanup(self) -> None:
        """Release the model. What was answered is in the journal already."""
        if self._llm is not None:
            self._llm.close()
        if self._journal is not None:
            self._journal.close()

    def _open(self) -> None:
        if self._configuration is not None:
            return
        name = self.backend()
        self.settings.check_backend(name)
        self._llm = self.settings.llm(name)
        self._journal = Journal.of_job()
        digests = FileDigests(job_folder() / DIGESTS)
        sampling = self.settings.sampling.__dict__
        self._configuration = Configuration(
            self.settings.model,
            {**self._llm.identity(digests), "sampling": {**sampling, "stop": list(sampling["stop"])}},
        )
        if baseline := self._llm.baseline_identity(digests):
            value = {**baseline, "sampling": self._configuration.value["sampling"]}
            self._baseline = Configuration(self.settings.model, value)

    def _turn(self, messages: list[Message], hints: Hints) -> tuple[Completion, dict[str, Any]]:
        assert self._llm is not None
        assert self._journal is not None
        assert self._configuration is not None
        journal = self._journal
        key = self._configuration.key(messages, hints.prediction)
        found = journal.get(key) if self.settings.use_cache else None
        if found is None:
            if self.settings.use_cache and (why := journal.explain_miss(self._configuration, messages)):
                log.warning("%s model: %s", self.side, why)
            journal.ensure_writable()
            self._llm.load()
            completion = self._llm.generate(messages, self.settings.sampling, hints=hints)
            hardware = journal.put(
                self._configuration,
                messages,
                completion,
                side=self.side,
                hardware=self._llm.hardware(),
                prediction=hints.prediction,
            )
            # As the journal holds it, times rounded: a replay gives the same leaderboard to the last digit.
            entry = Entry(Completion.from_json(completion.to_json()), hardware, replayed=False)
        else:
            entry = found
        return entry.completion, turn_of(
            entry.completion,
            key=key,
            replayed=entry.replayed,
            cached=found is not None and not entry.replayed,
            hardware=entry.hardware,
            baseline=self._compare(journal, messages, hints, key, entry),
        )

    def _compare(
        self, journal: Journal, messages: list[Message], hints: Hints, key: str, entry: Entry
    ) -> dict[str, Any] | None:
        if self._baseline is None:
            return None
        assert self._configuration is not None
        own = self._baseline.digest == self._configuration.digest
        baseline_key = key if own else self._baseline.key(messages, hints.prediction)
        baseline = entry if own else journal.get(baseline_key)
        if baseline is None:
            return None
        ours, theirs = entry.completion, baseline.completion
        comparison: dict[str, Any] = {
            "key": baseline_key,
            "latency": theirs.trace.latency if baseline.hardware == entry.hardware else None,
            "completion_tokens": theirs.completion_tokens,
            "identical": ours.token_ids == theirs.token_ids,
        }
        if not comparison["identical"]:
            pairs = zip(ours.token_ids, theirs.token_ids, strict=False)
            shorter = min(len(ours.token_ids), len(theirs.token_ids))
            difference = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
            near_ties = {position for position, _ in (*ours.trace.near_ties, *theirs.trace.near_ties)}
            comparison |= {"difference": difference, "near_tie": difference in near_ties}
        return comparison

    def _response(
        self, query: Query, completions: list[Completion], turns: list[dict[str, Any]], data: dict[str, Any]
    ) -> Response:
        response = response_of(
            query, completions, turns, side=self.side, model=self.settings.model, backend=self.backend()
        )
        usage = response["usage"]
        # Coupled sampling, too, has one right output.
        coupled = self.settings.options.get("acceptance") == "coupled"
        response["greedy"] = self.settings.sampling.greedy or coupled
        response["lossy"] = self._llm is not None and self._llm.lossy(self.settings.sampling)
        response["cost"] = self.settings.cost(usage["prompt_tokens"], usage["completion_tokens"])
        response["routing"] = data.get("routing")
        response["slo"] = data.get("slo")
        return response


class EdgeModel(RoutedModel):
    """The model on the edge, as Sedna's JointInference drives it: ``load``, then ``predict`` for each row."""

    side: ClassVar[str] = "edge"
    latest: ClassVar[weakref.ref[EdgeModel] | None] = None
    """The edge model of the running test case: Ianvs constructs a test case's modules anew, and the models do not know
    each other.
    """

    def __init__(self, **hyperparameters: Any) -> None:
        super().__init__(**hyperparameters)
        EdgeModel.latest = weakref.ref(self)
        # Sedna wants an existing path before it calls load(), and copies what it finds there into the temporary folder.
        # Given a file, it copies nothing; and a framework that it does not know is the only one whose errors of load()
        # it passes on.
        os.environ["BACKEND_TYPE"] = "IANVS_SPECDEC"
        os.environ["model_path"] = os.path.abspath(__file__)  # noqa: SIM112 - the name is Sedna's

    def load(self, **kwargs: Any) -> None:
        """Called by Ianvs once per test case. Looks at the model's files; the weights wait until they are needed."""
        self._open()

    def predict(self, data: Any, **kwargs: Any) -> Response:
        return self.answer(data)


class CloudModel(RoutedModel):
    """The model in the cloud: ``inference`` for each hard row."""

    side: ClassVar[str] = "cloud"

    @classmethod
    def _parse(cls, hyperparameters: dict[str, Any]) -> Settings:
        return Settings.parse(hyperparameters, follows_edge=True)

    def backend(self) -> str:
        """The back end's name; ``same-as-edge`` is resolved at the first query, when both models of the test case
        exist.
        """
        if self.settings.backend != SAME_AS_EDGE:
            return self.settings.backend
        edge = EdgeModel.latest() if EdgeModel.latest is not None else None
        if edge is None:
            raise UserError(f"backend {SAME_AS_EDGE}: this test case has no edge model", key="backend")
        return edge.backend()

    def inference(self, data: Any, **kwargs: Any) -> Response:
        return self.answer(data)
