"""The dataset processor: converts rows to dicts with query, answer, row number and scoring settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ianvs_specdec.backends.judge import JudgeSettings
from ianvs_specdec.benchmarks import code, sandbox
from ianvs_specdec.benchmarks.judge_prompts import FASTCHAT_FILE
from ianvs_specdec.benchmarks.rows import Row, RowReader
from ianvs_specdec.benchmarks.scorers import references_of
from ianvs_specdec.common.errors import unknown, warn_once
from ianvs_specdec.common.settings import Settings, collect_errors, raise_all
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin.row_checks import RowChecks

ROUNDS = 12
"""Maximum number of rounds (each has columns)."""

Seconds = Annotated[float, Field(gt=0)]


class ProcessorSettings(Settings):
    """The hyperparameters except those of the judge."""

    noun: ClassVar[str] = "hyperparameter"

    slo_ttft: Seconds | None = Field(None, description="seconds to the first token that Goodput permits")
    slo_itl: Seconds | None = Field(None, description="seconds for a further token that Goodput permits")
    slo_latency: Seconds | None = Field(None, description="seconds to the last token that Goodput permits")
    run_code: bool = Field(False, description="permits to run the programs in answers to rows with the scorer code")
    code_timeout: Seconds = Field(code.SECONDS, description="seconds of processor time of such a program")
    rounds: Annotated[int, Field(ge=1, le=ROUNDS)] | None = Field(None, description="parts that rows are divided into")


class DatasetProcessor(RowChecks):
    """Converts each row to ``{"query": question, "gold": answer, "index": i}``, in order.

    Hyperparameters: ``ProcessorSettings``, and ``JudgeSettings`` with the prefix ``judge_``. With ``rounds``, ``round``
    of a row is its round, from 1. ``sandbox`` of a row whose program may run lists the isolation on this machine.
    Settings of scorers are added to ``gold``; rows whose scorer lacks its settings have no score.
    """

    def __init__(self, **hyperparameters: Any) -> None:
        settings, judge = self._parse(hyperparameters)
        limits = {name: getattr(settings, f"slo_{name}") for name in ("ttft", "itl", "latency")}
        self.slo = {name: float(limit) for name, limit in limits.items() if limit is not None}
        self.judge = judge.to_json() if judge else None
        self._prompts = judge.prompt_set() if judge else None
        self.rounds = settings.rounds or 0
        self.seconds = float(settings.code_timeout) if settings.run_code else None

    @classmethod
    def check_hyperparameters(cls, hyperparameters: dict[str, Any]) -> None:
        """Raise UserError with the ``key`` of a wrong hyperparameter."""
        cls._parse(hyperparameters)

    @classmethod
    def _parse(cls, hyperparameters: dict[str, Any]) -> tuple[ProcessorSettings, JudgeSettings | None]:
        known = (*ProcessorSettings.names(), *JudgeSettings.names())
        own = {name: value for name, value in hyperparameters.items() if name not in JudgeSettings.names()}
        _, settings, judge = collect_errors(
            lambda: raise_all([unknown("hyperparameter", name, known, key=name) for name in own if name not in known]),
            lambda: ProcessorSettings.parse({name: value for name, value in own.items() if name in known}),
            lambda: JudgeSettings.parse(hyperparameters),
        )
        return settings, judge

    def __call__(self, dataset: Any) -> Any:
        reader = RowReader(lambda part, place: f"the {part} of {place}", self.judge is not None)
        rows = []
        scorers = set()
        for index, (question, answer) in enumerate(zip(dataset.x, dataset.y, strict=True)):
            question, answer, query = reader.read(f"data row {index + 1}", question, answer)
            scorers.add(query.scorer)
            row = Row(query=question, gold=self._gold(query, answer), index=index)
            row.parsed = query
            if query.scorer == "code" and self.seconds:
                row["sandbox"] = list(sandbox.confinement())
            if self.slo:
                row["slo"] = self.slo
            rows.append(row)
        for index, row in enumerate(rows if self.rounds else ()):
            row["round"] = index * self.rounds // len(rows) + 1
        self._warn(scorers)
        dataset.x = rows
        return dataset

    def _gold(self, query: Query, answer: Any) -> Any:
        """The row's answer with the settings of its scorer."""
        if query.scorer == "judge" and self.judge is not None:
            references = list(references_of(answer))
            return {"question": list(query.turns), "references": references, "group": query.group, "judge": self.judge}
        if query.scorer == "code" and self.seconds:
            return {**answer, "run": self.seconds}
        return answer

    def _warn(self, scorers: Iterable[str]) -> None:
        """Warn once about scores that are missing or not comparable."""
        scored = sorted(set(scorers) - {"none"})
        if "judge" in scored and self.judge is None:
            warn_once("scorer judge: no judge_model is set, so these rows have no score")
        if "judge" in scored and self._prompts is not None and not self._prompts.official:
            warn_once(
                f"scorer judge: the prompts are {self._prompts.name}; scores comparable with published ones of "
                f"MT-Bench need FastChat's {FASTCHAT_FILE} under judge_prompts"
            )
        if "judge" in scored and self.judge is not None and len(scored) > 1:
            others = ", ".join(name for name in scored if name != "judge")
            warn_once(f"Accuracy is a mean of the judge's 1 to 10 and of percentages (scorers {others})")
        if "code" in scored:
            self._warn_about_programs()

    def _warn_about_programs(self) -> None:
        if not self.seconds:
            warn_once("scorer code: programs are run only with run_code: true, so these rows have no score")
            return
        isolation = " and ".join(sandbox.confinement())
        warn_once(
            f"run_code: programs written by a model run on this machine, confined by {isolation}; for models you do "
            "not trust, use a container or a virtual machine"
        )
