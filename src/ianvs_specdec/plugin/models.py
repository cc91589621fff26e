"""The edge model and the cloud model of Ianvs' joint inference."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ianvs_specdec.answers.journal import Journal, KeptPrefill, Prefill
from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.errors import AnswerError, UserError
from ianvs_specdec.identity import digest
from ianvs_specdec.llm.base import LLM
from ianvs_specdec.plugin import edge_first
from ianvs_specdec.plugin.held import STATE, HeldAnswer, Waiting
from ianvs_specdec.plugin.ignored import tell_ignored
from ianvs_specdec.plugin.overhead import settled
from ianvs_specdec.plugin.overlap import REQUESTS
from ianvs_specdec.plugin.response import Response, prefill_response
from ianvs_specdec.plugin.routed import RoutedModel
from ianvs_specdec.plugin.settings import SAME_AS_EDGE, Settings
from ianvs_specdec.plugin.timings import MONOTONIC_EPOCH, circumstances
from ianvs_specdec.run import current_repeat
from ianvs_specdec.types import POOLING, Early, Query, messages_of


class EdgeModel(RoutedModel):
    """The model on the edge, as Sedna's JointInference drives it: ``load``, then ``predict`` for each row."""

    side: ClassVar[str] = "edge"

    def __init__(self, **hyperparameters: Any) -> None:
        super().__init__(**hyperparameters)
        self._held: weakref.WeakSet[HeldAnswer] = weakref.WeakSet()
        edge_first.announce(self)
        # Sedna wants an existing path before it calls load(), and copies what it finds there into the temporary folder.
        # Given a file, it copies nothing; and a framework that it does not know is the only one whose errors of load()
        # it passes on.
        os.environ["BACKEND_TYPE"] = "IANVS_SPECDEC"
        os.environ["model_path"] = os.path.abspath(__file__)  # noqa: SIM112 - the name is Sedna's

    def load(self, **kwargs: Any) -> None:
        """Called by Ianvs once per test case. Looks at the model's files; the weights wait until they are needed."""
        tell_ignored()
        self._open()

    def predict(self, data: Any, **kwargs: Any) -> Response:
        if (given := edge_first.taken(data)) is not None:
            if given.get("stopped"):
                # Whoever has overruled the router wants the whole answer; what there was of it was the router's.
                edge_first.count(data, given["perf"]["latency"])
                return self.answer(data)
            given["routing"] = settled(data.get("routing"), given, Journal.of_job())
            return given
        return self.answer(data, held=edge_first.held(data))

    def probe(
        self, data: Any, layers: Sequence[int], check: Callable[[str, str], None], early: Early | None = None
    ) -> HeldAnswer | None:
        """Read the first turn of a query, as ``answer`` would, and hold the answer back there; the hidden states of
        ``layers``, pooled, are in the journal then. None if the edge has no answer to it.

        Raises UserError where the back end has no hidden states. ``check`` is called with the model's name and the
        digest of its files before it is asked, and raises UserError unless it is the right one. ``early`` is for the
        answer.
        """
        query = query_of_row(data)
        self._open()
        assert self._llm is not None
        assert self._journal is not None
        self._llm.check_probe()
        repeat = current_repeat()
        manner = self._manner(self._sampling(query, repeat), repeat)
        check(self.settings.model, str(manner.own.value["model"]))
        messages, hints = messages_of(query, []), query.hints(0)
        key = digest([manner.own.key(messages, hints.prediction), "probe", list(layers), POOLING])
        with self._journal.asking(key):
            kept = self._journal.prefill(key) if self.settings.use_cache else None
            if kept is not None:
                return HeldAnswer(kept, self._unused(query, kept, key))
            llm, journal = self._ready(manner, messages)
            begun = REQUESTS.begin()
            given = replace(hints, early=early)
            waiting = Waiting(llm.probe(messages, manner.sampling, layers, given), begun)
            try:
                self._keep(key, waiting, llm, journal)
            except BaseException as error:
                waiting.drop()
                if not isinstance(error, AnswerError):
                    raise
                journal.put_failure(manner.own.key(messages, hints.prediction), error, side=self.side)
                self._forgive(query, error)
                return None
            kept = journal.prefill(key)
            assert kept is not None
        held = HeldAnswer(kept, self._unused(query, kept, key), waiting)
        with self._mutex:
            self._held.add(held)
        return held

    def _keep(self, key: str, waiting: Waiting, llm: LLM, journal: Journal) -> None:
        """Wait until the prompt is read, and put what came of it into the journal. Raises AnswerError where it cannot
        be read."""
        probed = waiting.probed
        states = probed.halves.astype(STATE).tobytes()
        prefill = Prefill(states, probed.prompt_tokens, probed.seconds, MONOTONIC_EPOCH + waiting.begun.issued)
        journal.put_prefill(key, prefill, hardware=circumstances(llm))

    def _unused(self, query: Query, kept: KeptPrefill, key: str) -> Response:
        """What the edge has done for a query that it only read."""
        tokens = kept.prefill.prompt_tokens
        return prefill_response(
            query,
            kept,
            key,
            side=self.side,
            model=self.settings.model,
            backend=self.backend(),
            cost=self.settings.cost(tokens, 0),
        )

    def cleanup(self) -> None:
        with self._mutex:
            left = list(self._held)
        try:
            for held in left:
                held.drop()
        finally:
            super().cleanup()


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
        if (held := edge_first.held(data)) is not None:
            given = edge_first.dropped(data, held)
        response = self.answer(data)
        if given is not None:
            response[edge_first.KEY] = given
        return response
