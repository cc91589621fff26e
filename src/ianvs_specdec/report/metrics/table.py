"""The results of a test case as columns of numbers, from which every metric is computed."""

from __future__ import annotations

import copy
import itertools
import weakref
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.records.response import edge_answer_of
from ianvs_specdec.report.metrics.rows import ENERGY, NAN, Response, Row, energy_sources, number, query_row, turn_row
from ianvs_specdec.workspace.scoring import scores

Column = NDArray[np.float64]


class _Rows:
    """Rows of numbers, 8 bytes each: a test case may have many thousands."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._values: array[float] = array("d")

    def append(self, row: Row) -> None:
        """``row`` has the columns of the first row, in its order."""
        self._names = self._names or tuple(row)
        self._values.extend(row.values())

    def __len__(self) -> int:
        return len(self._values) // max(1, len(self._names))

    def columns(self) -> dict[str, Column]:
        table = np.array(self._values, dtype=np.float64).reshape(len(self), len(self._names))
        return {name: table[:, place].copy() for place, name in enumerate(self._names)}


class _Requests:
    """The requests of a test case, their baselines, and the turn of each."""

    def __init__(self) -> None:
        self._turns: list[int] = []
        self._own, self._base = _Rows(), _Rows()
        self._seen: set[tuple[str, Any]] = set()

    def add(self, turn: int, answer: Response) -> None:
        trace, base = answer["trace"], answer.get("baseline") or {}
        chunks = trace["chunks"]
        latency, tokens = chunks[-1][0] if chunks else NAN, sum(chunk[1] for chunk in chunks)
        self._turns.append(turn)
        self._own.append(self._span("own", answer, trace, latency, tokens))
        self._base.append(self._span("baseline", base, base, base.get("latency"), base.get("completion_tokens")))

    def add_prefill(self, turn: int, prefill: Response) -> None:
        """Add the prefill of a prompt for a router, which takes as long in the baseline."""
        self._turns.append(turn)
        for kind, spans in (("own", self._own), ("baseline", self._base)):
            spans.append(self._span(kind, prefill, prefill, prefill["seconds"], 1))

    def busy(self, turns: int) -> tuple[Column, Column]:
        """``busy`` and ``base_busy`` of each turn."""
        if not self._turns:
            return np.zeros(turns), np.zeros(turns)
        own, base = self._own.columns(), self._base.columns()
        # An empty baseline has no time per token.
        base_tokens = np.where(base["tokens"] > 0, base["tokens"], NAN)
        shares = _busy(own), _busy(base) / base_tokens * own["tokens"]
        index = np.array(self._turns, dtype=np.intp)
        busy, base_busy = (np.bincount(index, share, turns).astype(np.float64, copy=False) for share in shares)
        return busy, base_busy

    def _span(self, kind: str, answer: Response, times: Response, latency: float | None, tokens: float | None) -> Row:
        key = (kind, answer.get("key"))
        first = key[1] is None or key not in self._seen
        self._seen.add(key)
        issued = times.get("issued") if first else None
        known = {"issued": issued, "latency": latency, "share": times.get("busy"), "tokens": tokens}
        return {name: number(value) for name, value in known.items()}


def rounded(value: float) -> float:
    """``value`` with six significant digits."""
    return value if value.is_integer() else float(f"{value:.6g}")


class Table:
    """Rows of one test case as float columns; NaN = undefined. Holds no reference to the rows.

    Columns of turns (one request each): ``rows.turn_row``, ``query`` (its index), ``busy`` and ``base_busy``. Columns
    of queries: ``rows.query_row`` and ``score``. ``gaps``: seconds between consecutive chunks, of all turns.
    ``groups``: subject or category of each query.

    ``busy`` is a turn's share of the time in seconds: of the time that ``n`` requests have in common, each counts
    ``1/n``, so that the sum is the time with any work. An answer shared by several queries counts in full for each.

    In a cascade, the time until the edge's answer or failure is in ``ttft`` and ``latency`` of the cloud's first turn,
    and the edge's work in its ``busy`` and ``base_busy``; the same holds for a prompt that the edge read for a router,
    and for further samples of the edge's answer. Timings are NaN if replayed answers of a side come from several
    machines, a side's energy if from several counters.
    """

    TIMINGS: ClassVar[tuple[str, ...]] = (
        *("ttft", "ttft_answer", "latency", "busy", "draft_time", "base_latency", "base_busy"),
    )

    _last: ClassVar[tuple[list[int], Mapping[int, Any], int, Table | None]] = [], {}, 0, None

    def __init__(self, y_true: Sequence[Any], y_pred: Sequence[Any]) -> None:
        if len(y_true) != len(y_pred):
            raise UserError(f"{len(y_pred)} results for {len(y_true)} answers: the dataset changed while the job ran")
        turns, queries, requests = _Rows(), _Rows(), _Requests()
        gaps: list[float] = []
        hardware: dict[Any, set[Any]] = {}
        sources: dict[str, set[str]] = {"edge": set(), "cloud": set()}
        replayed = False
        for index, (hard, result, edge_result, cloud) in enumerate(y_pred):
            edge = edge_answer_of(result, edge_result)
            answers = _before(edge, cloud)
            replayed = replayed or bool(result.get("replayed"))
            before = [turn for answer in answers for turn in answer.get("turns", ()) if turn["trace"]["chunks"]]
            waited = sum((turn["trace"]["chunks"][-1][0] for turn in before), 0.0)
            # A failed request: seconds from its start to the last failure.
            waited += sum(answer["failures"][-1][0] for answer in answers if answer.get("failures"))
            drafting = sum((number(turn["trace"].get("drafting")) for turn in before), 0.0)
            if (prefill := (edge or {}).get("prefill")) and result.get("turns"):
                waited += prefill["seconds"]
                requests.add_prefill(len(turns), prefill)
                hardware.setdefault("edge", set()).add(prefill.get("hardware"))
                replayed = replayed or bool(prefill.get("replayed"))
            for turn in before if result.get("turns") else ():
                requests.add(len(turns), turn)
                hardware.setdefault("edge", set()).add(turn.get("hardware"))
                replayed = replayed or bool(turn.get("replayed"))
            for turn in result.get("turns", ()):
                requests.add(len(turns), turn)
                turns.append(turn_row(index, turn, result, waited, drafting))
                times = [chunk[0] for chunk in turn["trace"]["chunks"]]
                gaps += [after - before for before, after in itertools.pairwise(times)]
                hardware.setdefault(result.get("side"), set()).add(turn.get("hardware"))
                waited = drafting = 0.0
            queries.append(query_row(hard, result, edge, cloud))
            sources["edge"] |= energy_sources(edge)
            sources["cloud"] |= energy_sources(cloud)
        self._turns, self._queries = {"query": np.empty(0), **turns.columns()}, queries.columns()
        self.gaps: Column = np.array(gaps, dtype=np.float64)
        self._unscored: UserError | None = None
        try:
            scored = scores([result for _, result, _, _ in y_pred], list(y_true))
            _check_answered([result for _, result, _, _ in y_pred])
        except UserError as error:
            # Other columns do not need the scores.
            self._unscored, scored = error, [None] * len(y_pred)
        self._queries["score"] = np.array([number(score) for score in scored], dtype=np.float64)
        self.groups = [str(result.get("group", "")) for _, result, _, _ in y_pred]
        self._turns["busy"], self._turns["base_busy"] = requests.busy(len(turns))
        if mixed := replayed and any(len(machines) > 1 for machines in hardware.values()):
            for name in self.TIMINGS:
                self._turns[name] = np.full_like(self._turns[name], NAN)
            self.gaps = np.empty(0)
        blank = [side for side, names in sources.items() if mixed or len(names) > 1]
        self._queries |= {f"{side}_{part}": np.full(len(queries), NAN) for side in blank for part in ENERGY}

    @classmethod
    def of(cls, y_true: Sequence[Any], y_pred: Sequence[Any]) -> Table:
        """The table of these results, cached for the metrics of a test case while the results live. Results of other
        plugins may be plain dicts, which have no weak references: their table is built for each metric."""
        # An id is unique while its object lives.
        ids = list(map(id, itertools.chain.from_iterable(y_pred)))
        known, alive, most, table = cls._last
        if table is None or not ids or ids != known or len(alive) < most:
            table = cls(y_true, y_pred)
            parts = {id(part): part for row in y_pred for part in row[1:] if part is not None}
            try:
                cls._last = ids, weakref.WeakValueDictionary(parts), len(parts), table
            except TypeError:
                cls._last = [], {}, 0, None
        return table

    def with_scores(self, scores: Mapping[int, float | None]) -> Table:
        """A copy with these scores by place of the query; None = undefined."""
        table = copy.copy(self)
        table._queries = {**self._queries, "score": self._queries["score"].copy()}
        for place, score in scores.items():
            table._queries["score"][place] = number(score)
        return table

    def part(self, queries: NDArray[np.intp]) -> Table:
        """The table of some queries, by their places, without ``gaps``, which are not stored by query."""
        place = np.full(len(self), -1)
        place[queries] = np.arange(len(queries))
        owner = place[self._turns["query"].astype(np.intp)]
        table = copy.copy(self)
        table._turns = {name: column[owner >= 0] for name, column in self._turns.items()}
        table._turns["query"] = owner[owner >= 0].astype(np.float64)
        table._queries = {name: column[queries] for name, column in self._queries.items()}
        table.groups = [self.groups[query] for query in queries]
        table.gaps = np.empty(0)
        return table

    def __len__(self) -> int:
        return len(self.groups)

    def turn(self, name: str) -> Column:
        """A column with one entry per turn."""
        return self._turns[name] if self._turns["query"].size else np.empty(0)

    def query(self, name: str) -> Column:
        """A column with one entry per query; columns of turns are summed. Raises UserError for ``score`` if a scorer
        failed or no query was answered."""
        if name == "score" and self._unscored is not None:
            raise self._unscored
        return self._queries[name] if name in self._queries else self.by_query(self.turn(name))

    def by_query(self, turns: Column) -> Column:
        """Sum per query of a column of turns; NaN if a turn is undefined or there is none."""
        index = self._turns["query"].astype(np.intp)
        sums = np.bincount(index, weights=turns, minlength=len(self))
        return np.where(np.bincount(index, minlength=len(self)) > 0, sums, NAN)


def shared_time(issued: Column, latency: Column) -> Column:
    """Share of the time of each request in seconds (see ``busy`` in ``Table``); its latency if unknown."""
    known = np.flatnonzero(~np.isnan(issued) & ~np.isnan(latency))
    starts, ends = issued[known], issued[known] + latency[known]
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    times = times[order]
    active = np.cumsum(np.where(order < len(known), 1, -1))[:-1]
    shares = np.divide(np.diff(times), active, out=np.zeros(len(active)), where=active > 0)
    passed = np.concatenate([[0.0], np.cumsum(shares)])
    result = latency.copy()
    result[known] = passed[np.searchsorted(times, ends)] - passed[np.searchsorted(times, starts)]
    return result


def _check_answered(results: Sequence[Response]) -> None:
    """Raise UserError if every query failed: there is no model to score."""
    errors = [result["error"] for result in results if result.get("error")]
    if errors and len(errors) == len(results):
        reason = f"none of the {len(results)} queries got a whole answer, which max_failures permits; the first"
        raise UserError(f"{reason}: {errors[0]}")


def _before(edge: Response | None, cloud: Response | None) -> list[Response]:
    """Requests before the final answer: in a cascade the edge's, and further samples of its answer."""
    return [] if edge is None else [*([] if cloud is None else [edge]), *edge.get("samples", ())]


def _busy(spans: Mapping[str, Column]) -> Column:
    """Share of the time of each request: the reported share if it is lower than that of the spans."""
    share = shared_time(spans["issued"], spans["latency"])
    return np.where(spans["share"] < share, spans["share"], share)
