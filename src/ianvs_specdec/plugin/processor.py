"""The dataset processor: rows become dicts that carry along the answer, the row number and how answers are scored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ianvs_specdec.backends.judge import JudgeSettings
from ianvs_specdec.benchmarks import code, sandbox
from ianvs_specdec.benchmarks.files import check, is_number, is_whole
from ianvs_specdec.benchmarks.judge_prompts import FASTCHAT_FILE
from ianvs_specdec.benchmarks.rows import Row
from ianvs_specdec.benchmarks.scorers import references_of
from ianvs_specdec.benchmarks.validation import Reader
from ianvs_specdec.common.errors import unknown, warn_once
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin.rows_checked import RowsChecked

ROUNDS = 12
"""There are columns for so many rounds."""

_SECONDS = ("slo_ttft", "slo_itl", "slo_latency", "code_timeout")


class DatasetProcessor(RowsChecked):
    """Turns each row into ``{"query": question, "gold": answer, "index": i}``, without reordering or dropping any.

    Hyperparameters:

    - ``slo_ttft``, ``slo_latency`` (seconds) and ``slo_itl`` (seconds per token): the service-level objective that
      Goodput is judged by; what is left out is not demanded;
    - ``judge_...``: the judge of rows with the scorer ``judge``, see ``judge.JudgeSettings``;
    - ``run_code``: permits to run the programs in answers to rows with the scorer ``code``, each for at most
      ``code_timeout`` seconds of processor time;
    - ``rounds``: into how many parts of equal size the rows are divided, in their order; a row says in ``round``, from
      1, which it is in, and the leaderboard has columns by round.

    A row whose program may be run says in ``sandbox`` what confines it on this machine; so does its response.
    Rows whose scorer lacks its settings have no score. What scorers need to know is added to the rows' answers.
    """

    def __init__(self, **hyperparameters: Any) -> None:
        self.check_hyperparameters(hyperparameters)
        limits = {name: hyperparameters.get(f"slo_{name}") for name in ("ttft", "itl", "latency")}
        self.slo = {name: float(limit) for name, limit in limits.items() if limit is not None}
        settings = JudgeSettings.parse(hyperparameters)
        self.judge = settings.to_json() if settings else None
        self._prompts = settings.prompt_set() if settings else None
        timeout = hyperparameters.get("code_timeout") or code.SECONDS
        self.rounds = int(hyperparameters.get("rounds") or 0)
        self.seconds = float(timeout) if hyperparameters.get("run_code") else None

    @classmethod
    def check_hyperparameters(cls, hyperparameters: dict[str, Any]) -> None:
        """Raise UserError, with the ``key`` at fault, for hyperparameters that cannot work. Asks and runs nothing."""
        known = (*_SECONDS, *JudgeSettings.names(), "run_code", "rounds")
        for name in hyperparameters:
            if name not in known:
                raise unknown("hyperparameter", name, known, key=name)
        seconds = "a number above 0 (seconds)"
        check(hyperparameters, _SECONDS, lambda value: is_number(value) and value > 0, seconds)
        check(hyperparameters, ["run_code"], lambda value: isinstance(value, bool), "true or false")
        rounds = f"a whole number from 1 to {ROUNDS}"
        check(hyperparameters, ["rounds"], lambda value: is_whole(value) and 1 <= value <= ROUNDS, rounds)
        JudgeSettings.parse(hyperparameters)

    def __call__(self, dataset: Any) -> Any:
        reader = Reader(lambda part, place: f"the {part} of {place}", self.judge is not None)
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
