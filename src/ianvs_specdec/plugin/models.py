"""Edge and cloud model of Ianvs' joint inference."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.common.errors import AnswerError, UserError
from ianvs_specdec.common.types import POOLING, Message, messages_of
from ianvs_specdec.plugin import edge_first
from ianvs_specdec.plugin.energy import MACHINE
from ianvs_specdec.plugin.requests import EarlyExit, RequestConfig
from ianvs_specdec.plugin.response import prefill_response, with_prefill
from ianvs_specdec.plugin.routed import RoutedModel
from ianvs_specdec.plugin.routing_time import restore_routing_time
from ianvs_specdec.plugin.settings import SAME_AS_EDGE, ModelSettings
from ianvs_specdec.plugin.timings import MONOTONIC_EPOCH, REQUESTS, timing_conditions
from ianvs_specdec.plugin.unsupported_keys import warn_unsupported_keys
from ianvs_specdec.records.identity import digest
from ianvs_specdec.records.journal import Journal, Prefill
from ianvs_specdec.records.response import Response
from ianvs_specdec.records.run import current_repeat

STATE = "<f2"
"""Data type of hidden states in the journal: little-endian float16."""


class EdgeModel(RoutedModel):
    """The edge model. Sedna's JointInference calls ``load``, then ``predict`` for each row."""

    side: ClassVar[str] = "edge"

    def __init__(self, **hyperparameters: Any) -> None:
        super().__init__(**hyperparameters)
        edge_first.set_current(self)
        # Sedna needs an existing path, and copies folders (not files) to the temporary folder. It swallows the errors
        # of load() for the frameworks that it knows.
        os.environ["BACKEND_TYPE"] = "IANVS_SPECDEC"
        os.environ["model_path"] = os.path.abspath(__file__)  # noqa: SIM112 - the name is Sedna's

    def load(self, **kwargs: Any) -> None:
        """Check the model's files. Called by Ianvs once per test case; the weights are loaded when needed."""
        warn_unsupported_keys()
        MACHINE.measure_idle()
        self._open()

    def predict(self, data: Any, **kwargs: Any) -> Response:
        given = edge_first.take_answer(data)
        if given is not None and not given.get("stopped"):
            given["routing"] = restore_routing_time(data.get("routing"), given, Journal.of_job())
        elif given is not None and given.early is not None:
            # The router's decision was overruled.
            given.early.overrule()
            given = self.answer(data, early=given.early)
        else:
            given = self.answer(data)
        edge_first.take_prefill(data)
        return given

    def encode(self, data: Any, layers: Sequence[int], check: Callable[[str, str], None]) -> edge_first.Encoding | None:
        """Pooled hidden states of ``layers`` for the prompt of the first turn, from the journal or the model; None if
        the request fails.

        ``check`` is called first with the model's name and the digest of its files, and raises UserError for a wrong
        model. Raises UserError if the back end has no hidden states.
        """
        query = query_of_row(data)
        self._open()
        assert self._llm is not None
        assert self._journal is not None
        self._llm.check_encode()
        repeat = current_repeat()
        config = self._config(self._sampling(query, repeat), repeat)
        check(self.settings.general.model, str(config.own.value["model"]))
        messages, prediction = messages_of(query, []), query.hints(0).prediction
        key = digest([config.own.key(messages, prediction), "probe", list(layers), POOLING])
        with self._journal.request_lock(key):
            kept = self._journal.prefill(key) if self.settings.general.use_cache else None
            if kept is None:
                try:
                    self._encode(key, config, messages, layers)
                except AnswerError as error:
                    self._journal.put_failure(config.own.key(messages, prediction), error, side=self.side)
                    self._forgive(query, error)
                    return None
                kept = self._journal.prefill(key)
                assert kept is not None
        tokens = kept.prefill.prompt_tokens
        about = {"side": self.side, "model": self.settings.general.model, "backend": self.backend()}
        response = prefill_response(query, kept, key, **about, cost=self.settings.cost(tokens, 0))
        return edge_first.Encoding(np.frombuffer(kept.prefill.states, STATE).astype(np.float16), response)

    def _encode(self, key: str, config: RequestConfig, messages: list[Message], layers: Sequence[int]) -> None:
        """Compute the hidden states of a prompt and store them in the journal. Raises AnswerError."""
        assert self._journal is not None
        llm = self._ready(config, messages)
        hardware = timing_conditions(llm)
        energy, request = MACHINE.begin(hardware), REQUESTS.begin()
        try:
            found = llm.encode(messages, config.sampling, layers)
        finally:
            REQUESTS.end(request)
            used = MACHINE.end(energy)
        states = found.states.astype(STATE).tobytes()
        prefill = Prefill(states, found.prompt_tokens, found.seconds, MONOTONIC_EPOCH + request.issued, used)
        self._journal.put_prefill(key, prefill, hardware=hardware)

    def _answer(self, data: Any, repeat: int, early: EarlyExit | None) -> Response:
        read = data.get(edge_first.PREFILL) if isinstance(data, dict) else None
        response = super()._answer(data, repeat, early)
        return response if read is None else with_prefill(response, read)


class CloudModel(RoutedModel):
    """The model in the cloud: ``inference`` for each hard row."""

    side: ClassVar[str] = "cloud"

    @classmethod
    def _parse(cls, hyperparameters: dict[str, Any]) -> ModelSettings:
        settings = ModelSettings.parse(hyperparameters, follows_edge=True)
        if settings.general.samples > 1:
            reason = "samples is for the edge model, whose samples a router compares"
            raise UserError(reason, key="samples")
        return settings

    def backend(self) -> str:
        """The name of the back end. ``same-as-edge`` is resolved at the first query, when both models exist."""
        if self.settings.backend != SAME_AS_EDGE:
            return self.settings.backend
        edge = edge_first.current()
        if edge is None:
            raise UserError(f"backend {SAME_AS_EDGE}: the test case has no edge model", key="backend")
        return edge.backend()

    def inference(self, data: Any, **kwargs: Any) -> Response:
        read = edge_first.take_prefill(data)
        given = edge_first.take_answer(data) or read
        response = self.answer(data)
        if given is not None:
            response[edge_first.EDGE_ANSWER] = given
        return response
