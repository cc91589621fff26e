"""The dataset processor: rows become dicts that carry along the answer, the row number and how answers are scored."""

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
from ianvs_specdec.common.settings import Settings, raise_all, together
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin.rows_checked import RowsChecked

ROUNDS = 12
"""There are columns for so many rounds."""

Seconds = Annotated[float, Field(gt=0)]


class ProcessorSettings(Settings):
    """The hyperparameters beside those of the judge."""

    noun: ClassVar[str] = "hyperparameter"

    slo_ttft: Seconds | None = Field(None, description="seconds to the first token that Goodput permits")
    slo_itl: Seconds | None = Field(None, description="seconds for a further token that Goodput permits")
    slo_latency: Seconds | None = Field(None, description="seconds to the last token that Goodput permits")
    run_code: bool = Field(False, description="permits to run the programs in answers to rows with the scorer code")
    code_timeout: Seconds = Field(code.SECONDS, description="seconds of processor time of such a program")
    rounds: Annotated[int, Field(ge=1, le=ROUNDS)] | None = Field(None, description="parts that rows are divided into")


class DatasetProcessor(RowsChecked):
    """Turns each row into ``{"query": question, "gold": answer, "index": i}``, without reordering or dropping any.

    Hyperparameters: ``ProcessorSettings``, and ``JudgeSettings`` after ``judge_``. Where there are ``rounds``, a row
    says in ``round``, from 1, which it is in, and the leaderboard has columns by round.
    A row whose program may be run says in ``sandbox`` what confines it on this machine; so does its response.
    Rows whose scorer lacks its settings have no score. What scorers need to know is added to the rows' answers.
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
        """Raise UserError, with the ``key`` at fault, for hyperparameters that cannot work. Asks and runs nothing."""
        cls._parse(hyperparameters)

    @classmethod
    def _parse(cls, hyperparameters: dict[str, Any]) -> tuple[ProcessorSettings, JudgeSettings | None]:
        known = (*ProcessorSettings.names(), *JudgeSettings.names())
        own = {name: value for name, value in hyperparameters.items() if name not in JudgeSettings.names()}
        _, settings, judge = together(
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
        self._tell(scorers)
        dataset.x = rows
        return dataset

    def _gold(self, query: Query, answer: Any) -> Any:
        """The row's answer, completed by what its scorer needs to know."""
        if query.scorer == "judge" and self.judge is not None:
            references = list(references_of(answer))
            return {"question": list(query.turns), "references": references, "group": query.group, "judge": self.judge}
        if query.scorer == "code" and self.seconds:
            return {**answer, "run": self.seconds}
        return answer

    def _tell(self, scorers: Iterable[str]) -> None:
        """Say what would surprise on the leaderboard, before a model is asked: once, not for every test case."""
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
            self._tell_of_programs()

    def _tell_of_programs(self) -> None:
        if not self.seconds:
            warn_once("scorer code: programs are run only with run_code: true, so these rows have no score")
            return
        held = " and ".join(sandbox.confinement())
        warn_once(
            f"run_code: programs that a model wrote run on this machine, confined by {held}; for models you do not "
            "trust, use a container or a virtual machine"
        )
