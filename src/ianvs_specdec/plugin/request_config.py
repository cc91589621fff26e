"""Sampling parameters and repeat of a request, and the configuration that determines its answer."""

from __future__ import annotations

import dataclasses
import threading
from dataclasses import dataclass
from typing import Any

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.prompts import chat_template
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.models.templates import with_template_time
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.records.run import job_folder


@dataclass(frozen=True)
class RequestConfig:
    """``own``: the configuration of answers in the journal; ``baselines``: those of answers without speculation, with
    and without log-probabilities."""

    sampling: Sampling
    repeat: int
    own: Configuration
    baselines: tuple[Configuration, ...]


class RequestConfigs:
    """The request configurations of ``llm``, which the user calls ``model``. Thread-safe. ``template_time``: the time
    that the chat template reads, "" if it reads none."""

    def __init__(self, model: str, llm: LLM, digests: FileDigests) -> None:
        self._model, self._llm, self._digests = model, llm, digests
        self._template, self.template_time = chat_template(llm), ""
        self._known: dict[tuple[Sampling, int, int], RequestConfig] = {}
        self._mutex = threading.Lock()

    def of(self, sampling: Sampling, repeat: int, resumed: int = 0) -> RequestConfig:
        """``resumed``: the number of tokens of a first request that this one continues. Each ``repeat`` and each
        value of ``resumed`` has answers of its own."""
        asked = sampling, repeat, resumed
        with self._mutex:
            if asked not in self._known:
                self._known[asked] = self._make(*asked)
            return self._known[asked]

    def _make(self, sampling: Sampling, repeat: int, resumed: int) -> RequestConfig:
        sampling = with_template_time(sampling, self._template, job_folder())
        self.template_time = sampling.template_time
        identity, baseline = self._llm.identity(self._digests), self._llm.baseline_identity(self._digests)
        own = self._configuration({**identity, **({"resumed": resumed} if resumed else {})}, sampling, repeat)
        baselines = []
        if baseline:
            demands = dict.fromkeys((sampling, dataclasses.replace(sampling, logprobs=False)))
            baselines = [self._configuration(baseline, demand, repeat) for demand in demands]
        return RequestConfig(sampling, repeat, own, tuple(baselines))

    def _configuration(self, identity: dict[str, Any], sampling: Sampling, repeat: int) -> Configuration:
        settings = {"sampling": sampling.to_json(), **({"repeat": repeat} if repeat else {})}
        return Configuration(self._model, {**identity, **settings}, dict(self._digests.files))
