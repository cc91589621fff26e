"""The results of one test case as columns of numbers, from which every metric is computed."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.scoring import scores
from ianvs_specdec.errors import UserError
from ianvs_specdec.plugin.edge_first import answer_of

Column = NDArray[np.float64]
Response = Mapping[str, Any]

NAN = float("nan")


class Table:
    """Rows of one test case as float columns; NaN = undefined. Holds no reference to the rows.

    Per turn (one request each, in order): ``query`` (its index), ``tokens``, ``first_tokens`` (in the first chunk),
    ``ttft`` and ``latency`` (seconds), ``steps``, ``drafted``, ``accepted``, ``emitted``, ``verified`` (sums over
    verification steps), ``bytes_up``, ``bytes_down``, ``memory`` (bytes), ``retries`` (failed attempts), ``issued``
    (Unix seconds), ``busy`` (seconds) and of the autoregressive baseline ``base_latency``, ``base_issued``,
    ``base_busy`` (for as many tokens), ``base_tokens``, ``identical``, ``near_tie`` (0 or 1; NaN without baseline, or
    when sampling, but 0 where the back end is lossy on purpose). Per query: ``hard``, ``replayed``, ``failed`` (1 = it
    has no whole answer), ``score``, ``routing`` (seconds), ``slo_ttft``, ``slo_itl``, ``slo_latency`` (inf = not
    demanded, NaN = no objective), ``cloud_cost``, ``edge_cost``, ``edge_prompt``, ``edge_completion``,
    ``cloud_prompt``, ``cloud_completion`` (tokens).
    ``gaps``: seconds between consecutive chunks, of all turns. ``groups``: each query's subject or category.

    ``busy`` is a turn's share of the time in which it was under way: where requests overlap, each of ``n`` counts a
    ``n``-th of the time that they have in common, so that the sum is the time in which there was any work at all. One
    after the other, it is the latency. An answer that several queries share counts for each as if it had been alone.
    Where the answers are some of those that were under way together, the share that was taken then counts.

    In a cascade the user waits for the edge's answer, or its failure, before the cloud is asked; that time is in
    ``ttft`` and ``latency`` of the cloud's first turn, the edge's work in its ``busy`` and ``base_busy``. Further
    samples of the edge's answer count in the same way, and where the edge's answer stays, to its own first turn: it is
    compared with them before it is given. Timings count if every answer was made in the running run or, with replayed
    answers among them, if the answers of each side were made on one hardware; else they are NaN.
    """

    TURN: ClassVar[tuple[str, ...]] = (
        *("query", "tokens", "first_tokens", "ttft", "latency", "steps", "drafted", "accepted", "emitted", "verified"),
        *("bytes_up", "bytes_down", "memory", "retries", "issued", "base_latency", "base_issued", "base_tokens"),
        *("identical", "near_tie"),
    )
    QUERY: ClassVar[tuple[str, ...]] = (
        *("hard", "replayed", "failed", "routing", "slo_ttft", "slo_itl", "slo_latency", "cloud_cost", "edge_cost"),
        *("edge_prompt", "edge_completion", "cloud_prompt", "cloud_completion"),
    )
    TIMINGS: ClassVar[tuple[str, ...]] = ("ttft", "latency", "busy", "base_latency", "base_busy")

    _last: ClassVar[tuple[weakref.ref[Any], int, int, Table] | None] = None

    def __init__(self, y_true: Sequence[Any], y_pred: Sequence[Any]) -> None:
        if len(y_true) != len(y_pred):
            raise UserError(f"{len(y_pred)} results for {len(y_true)} answers: the dataset changed while the job ran")
        turns: list[tuple[float, ...]] = []
        requests: list[tuple[float, ...]] = []
        queries: list[tuple[float, ...]] = []
        gaps: list[float] = []
        hardware: dict[Any, set[Any]] = {}
        asked: set[tuple[str, Any]] = set()
        replayed = False
        for index, (hard, result, asked_first, cloud) in enumerate(y_pred):
            edge = answer_of(result, asked_first)
            answers = _before(edge, cloud)
            before = [turn for answer in answers for turn in answer.get("turns", ()) if turn["trace"]["chunks"]]
            waited = sum((turn["trace"]["chunks"][-1][0] for turn in before), 0.0)
            # Of a request that was given up: the seconds from its beginning to the last failure.
            waited += sum(answer["failures"][-1][0] for answer in answers if answer.get("failures"))
            for turn in before if result.get("turns") else ():
                requests.append((len(turns), *_request(turn, asked)))
                hardware.setdefault("edge", set()).add(turn.get("hardware"))
                replayed = replayed or bool(turn.get("replayed"))
            for turn in result.get("turns", ()):
                requests.append((len(turns), *_request(turn, asked)))
                turns.append((index, *_turn(turn, result, waited)))
                times = [chunk[0] for chunk in turn["trace"]["chunks"]]
                gaps += [after - before for before, after in itertools.pairwise(times)]
                hardware.setdefault(result.get("side"), set()).add(turn.get("hardware"))
                waited = 0.0
            queries.append((float(bool(hard)), *_query(result, edge, cloud)))
        self._turns = dict(zip(self.TURN, _columns(turns, len(self.TURN)), strict=True))
        self._queries = dict(zip(self.QUERY, _columns(queries, len(self.QUERY)), strict=True))
        self.gaps: Column = np.array(gaps, dtype=np.float64)
        self._unscored: UserError | None = None
        try:
            scored = scores([result for _, result, _, _ in y_pred], list(y_true))
            _check_answered([result for _, result, _, _ in y_pred])
        except UserError as error:
            # What does not depend on the scores still can be told.
            self._unscored, scored = error, [None] * len(y_pred)
        self._queries["score"] = np.array([_nan(score) for score in scored], dtype=np.float64)
        self.groups = [str(result.get("group", "")) for _, result, _, _ in y_pred]
        self._turns["busy"], self._turns["base_busy"] = _busy(requests, len(turns))
        if (replayed or self._queries["replayed"].any()) and any(len(machines) > 1 for machines in hardware.values()):
            for name in self.TIMINGS:
                self._turns[name] = np.full_like(self._turns[name], NAN)
            self.gaps = np.empty(0)

    @classmethod
    def of(cls, y_true: Sequence[Any], y_pred: Sequence[Any]) -> Table:
        """The table of these results. A test case has many metrics; they share the table."""
        anchor = y_pred[0][1] if len(y_pred) else None
        last = cls._last
        if last and anchor is not None and last[0]() is anchor and last[1:3] == (id(y_pred), len(y_pred)):
            return last[3]
        table = cls(y_true, y_pred)
        # Results of other plugins may be plain dicts, which cannot be referred to weakly: they are read for each
        # metric.
        cls._last = (weakref.ref(anchor), id(y_pred), len(y_pred), table) if _weak(anchor) else None
        return table

    def __len__(self) -> int:
        return len(self._queries["hard"])

    def turn(self, name: str) -> Column:
        """A column with one entry per turn."""
        return self._turns[name]

    def query(self, name: str) -> Column:
        """A column with one entry per query; a column of turns is summed over the turns of each query.

        Raises UserError for ``score`` if a scorer could not do its work, or no query was answered.
        """
        if name == "score" and self._unscored is not None:
            raise self._unscored
        return self._queries[name] if name in self._queries else self.by_query(self._turns[name])

    def by_query(self, turns: Column) -> Column:
        """Sum per query of a column of turns; NaN where a turn is undefined, and for a query without turns."""
        index = self._turns["query"].astype(np.intp)
        sums = np.bincount(index, weights=turns, minlength=len(self))
        return np.where(np.bincount(index, minlength=len(self)) > 0, sums, NAN)


def shared_time(issued: Column, latency: Column) -> Column:
    """For each request its share of the time in which it was under way, in seconds (see ``busy`` in ``Table``).

    Requests whose time is not known count their latency as if nothing else had been under way.
    """
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
    """Raise UserError if every query failed: scores of empty answers would be those of no model."""
    errors = [result["error"] for result in results if result.get("error")]
    if errors and len(errors) == len(results):
        reason = f"none of the {len(results)} queries got a whole answer, which max_failures permits; the first"
        raise UserError(f"{reason}: {errors[0]}")


def _columns(rows: list[tuple[float, ...]], width: int) -> list[Column]:
    return list(np.array(rows, dtype=np.float64).reshape(-1, width).T)


def _before(edge: Response | None, cloud: Response | None) -> list[Response]:
    """What was asked for before the answer that counts: in a cascade the edge's, and in any case the further samples of
    the edge's answer, with which it is compared.
    """
    return [] if edge is None else [*([] if cloud is None else [edge]), *edge.get("samples", ())]


def _request(turn: Response, asked: set[tuple[str, Any]]) -> tuple[float, ...]:
    """Issued, latency, share of the time, tokens; the same of the baseline. ``asked`` holds the answers of the requests
    before, so that the time span of none is taken for another's.
    """
    trace, baseline = turn["trace"], turn.get("baseline") or {}
    chunks = trace["chunks"]
    own = (_once(turn.get("key"), "own", trace, asked), chunks[-1][0] if chunks else NAN, _nan(trace.get("busy")))
    theirs = (_once(baseline.get("key"), "baseline", baseline, asked), _nan(baseline.get("latency")))
    tokens, their_tokens = sum(chunk[1] for chunk in chunks), _nan(baseline.get("completion_tokens"))
    return (*own, tokens, *theirs, _nan(baseline.get("busy")), their_tokens)


def _busy(requests: list[tuple[float, ...]], turns: int) -> tuple[Column, Column]:
    """``busy`` and ``base_busy`` of each turn from its requests."""
    turn, *columns = _columns(requests, 9)
    shares = []
    for issued, latency, told, _ in (columns[:4], columns[4:]):
        share = shared_time(issued, latency)
        shares.append(np.where(told < share, told, share))
    with np.errstate(divide="ignore", invalid="ignore"):
        shares[1] = shares[1] / columns[7] * columns[3]
    index = turn.astype(np.intp)
    own, theirs = (np.bincount(index, share, turns).astype(np.float64, copy=False) for share in shares)
    return own, theirs


def _turn(turn: Response, result: Response, waited: float) -> tuple[float, ...]:
    trace, baseline = turn["trace"], turn.get("baseline") or {}
    chunks, steps = trace["chunks"], trace["steps"]
    identical = baseline.get("identical") if result.get("greedy") else None
    if result.get("lossy"):
        identical = False
    return (
        sum(chunk[1] for chunk in chunks),
        chunks[0][1] if chunks else 0,
        waited + chunks[0][0] if chunks else NAN,
        waited + chunks[-1][0] if chunks else NAN,
        len(steps),
        *(sum(step[part] for step in steps) for part in range(4)),
        _nan(trace.get("bytes_up")),
        _nan(trace.get("bytes_down")),
        _nan(trace.get("memory")),
        len(trace.get("failures", ())),
        _nan(trace.get("issued")),
        _nan(baseline.get("latency")),
        _nan(baseline.get("issued")),
        _nan(baseline.get("completion_tokens")),
        _nan(identical),
        NAN if identical is None else float(baseline.get("near_tie", False)),
    )


def _once(key: Any, kind: str, answer: Response, asked: set[tuple[str, Any]]) -> float:
    """When the answer was asked for; NaN if that has been told of an earlier turn."""
    if key is not None and (kind, key) in asked:
        return NAN
    asked.add((kind, key))
    return _nan(answer.get("issued"))


def _query(result: Response, edge: Response | None, cloud: Response | None) -> tuple[float, ...]:
    slo = result.get("slo")
    limits = [slo.get(name, np.inf) if slo else NAN for name in ("ttft", "itl", "latency")]
    usage = [_tokens(side, kind) for side in (edge, cloud) for kind in ("prompt_tokens", "completion_tokens")]
    costs = [_cost(side, result) for side in (cloud, edge)]
    routing = (result.get("routing") or {}).get("seconds")
    return (
        float(bool(result.get("replayed"))),
        float(bool(result.get("error"))),
        _nan(routing),
        *limits,
        *costs,
        *usage,
    )


def _cost(response: Response | None, result: Response) -> float:
    # A side that gave no answer, in place of which the other one did, has made no tokens to pay for.
    if response is None or (result.get("turns") and not response.get("turns")):
        return 0.0
    return _nan(response.get("cost"))


def _tokens(response: Response | None, kind: str) -> float:
    return 0.0 if response is None else float(response["usage"][kind])


def _nan(value: float | None) -> float:
    return NAN if value is None else float(value)


def _weak(value: Any) -> bool:
    return getattr(type(value), "__weakrefoffset__", 0) != 0
