"""What an evaluation is of: the outcomes that are taken, and each router's scores of them."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.files import records
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation.curve import ROUNDING
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.evaluation.pool import BASELINES, RoutingPolicy, only, pair_policy, pool_policy
from ianvs_specdec.routing.learned.folder import SEEN, TrainedRouter, read_seen
from ianvs_specdec.routing.outcomes.labels import label_values
from ianvs_specdec.routing.outcomes.recorded import Floats, Outcomes, Pool
from ianvs_specdec.routing.routers import ROUTERS, build_router
from ianvs_specdec.workspace.cases import read_workspace
from ianvs_specdec.workspace.sides import scores_of

WARM_UP = 5
"""Queries that are scored once before any is timed."""


@dataclass
class EvaluationInputs:
    """``routers``: their scores of ``outcomes``; ``notes`` for the user; ``left_out``: queries by reason."""

    outcomes: Outcomes | Pool
    routers: list[RouterScores] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def take(self, chosen: NDArray[np.bool_], reason: str) -> None:
        self.left_out[reason] = int((~chosen).sum())
        self.outcomes = self.outcomes.take(chosen)
        for place, router in enumerate(self.routers):
            sent = None if router.sent is None else router.sent[chosen]
            self.routers[place] = replace(router, scores=router.scores[chosen], sent=sent)

    def add(self, router: RouterScores, origin: str) -> None:
        """Add a router, under a name that no other one has."""
        taken = {*BASELINES, *map(only, self.outcomes.models), *(known.name for known in self.routers)}
        numbered = (f"{router.name} ({origin}, {number})" for number in itertools.count(2))
        names = itertools.chain([router.name, f"{router.name} ({origin})"], numbered)
        self.routers.append(replace(router, name=next(name for name in names if name not in taken)))

    def exclude_training_queries(self, named: Iterable[NamedRouter], job: Path | None = None) -> None:
        """Leave out, for all routers, the training queries of each."""
        seen = [router.trained.seen for router in named if router.trained is not None]
        seen += [] if job is None else list(_seen_of_job(job))
        if not seen:
            return
        unseen = ~np.isin(self.outcomes.digests(), np.concatenate(seen))
        if not unseen.any():
            raise UserError(
                f"all {len(self.outcomes)} queries are among those that the routers were trained with: give outcomes "
                "of others, or --include-seen"
            )
        if not unseen.all():
            count = int((~unseen).sum())
            self.take(unseen, "seen in training")
            self.notes.append(
                f"{count} queries that a router was trained with are left out for all routers, {len(self.outcomes)} "
                "remain (--include-seen keeps them)"
            )

    def check_scores(self) -> None:
        """Raise UserError if a router has no score of a query that is evaluated."""
        for router in self.routers:
            if len(missing := np.flatnonzero(np.isnan(router.scores.reshape(len(self.outcomes), -1)).any(axis=1))):
                identifier = self.outcomes.queries[missing[0]].id
                raise UserError(
                    f"--scores: {router.name} has no score of {len(missing)} of {len(self.outcomes)} queries; the "
                    f"first is the one with id {identifier!r}"
                )

    def set_labels(self, kind: str) -> None:
        labels = label_of(self.outcomes, kind)
        self.routers = [replace(router, labels=labels) for router in self.routers]

    def policy(self, router: RouterScores, thresholds: Sequence[float] | None) -> RoutingPolicy:
        return (
            pool_policy(router, self.outcomes, thresholds) if isinstance(self.outcomes, Pool) else pair_policy(router)
        )

    def decisions(self, threshold: float, thresholds: Sequence[float] | None, scores: Floats) -> NDArray[np.intp]:
        """The index of the model by score. ``threshold``: the router's own, of a pair."""
        chosen = self.policy(RouterScores.at_threshold("", scores, threshold), thresholds).chosen
        assert chosen is not None
        return chosen.argmax(axis=1)


def label_of(outcomes: Outcomes | Pool, kind: str, epsilon: float = 0.0) -> Floats | None:
    """None where these outcomes have no such labels: soft ones need several answers to a query."""
    try:
        return None if isinstance(outcomes, Pool) else label_values(outcomes, kind, epsilon)
    except UserError:
        return None


def load_router(name: str) -> NamedRouter:
    """``name``: the folder of a trained router, or the name of one that needs no training, as in YAML."""
    path = Path(name)
    if name in ROUTERS and not path.is_dir():
        router = build_router(name)
        return NamedRouter(
            name, name, lambda queries: np.array([router.score(one) for one in queries]), router.threshold
        )
    if not path.exists() and path.name == name:
        raise unknown("router (there is no such folder, either)", name, ROUTERS)
    trained = TrainedRouter.load(path)
    return NamedRouter(path.resolve().name, name, trained.score, trained.threshold, trained)


@dataclass
class NamedRouter:
    """A router of ``--router``."""

    name: str
    given: str
    score: Callable[[Sequence[Query]], Floats]
    threshold: float
    trained: TrainedRouter | None = None

    @property
    def probe(self) -> Any:
        return None if self.trained is None else self.trained.probe

    def scores(self, queries: Sequence[Query]) -> Floats:
        """Raises UserError if one is no number."""
        scores = np.asarray(self.score(queries), dtype=np.float64)
        if len(bad := np.flatnonzero(~np.isfinite(scores))):
            identifier = queries[bad[0]].id
            raise UserError(f"router {self.given}: its score of the query with id {identifier!r} is {scores[bad[0]]}")
        return scores

    def scored(self, outcomes: Outcomes | Pool, sample: int) -> RouterScores:
        """With the time of up to ``sample`` single queries."""
        seconds = self._times(outcomes.queries, sample)
        scores, known = self.scores(outcomes.queries), self.trained
        labels = None if known is None else label_of(outcomes, known.label, known.epsilon)
        return RouterScores.at_threshold(self.name, scores, self.threshold, labels=labels, seconds=seconds)

    def _times(self, queries: Sequence[Query], sample: int) -> Floats:
        places = np.unique(np.linspace(0, len(queries) - 1, min(sample, len(queries))).astype(np.intp))
        for place in places[:WARM_UP]:
            self.score([queries[place]])
        seconds = []
        for place in places:
            started = time.perf_counter()
            self.score([queries[place]])
            seconds.append(time.perf_counter() - started)
        return np.array(seconds, dtype=np.float64)


@contextmanager
def limit_threads(count: int) -> Iterator[None]:
    """No more than ``count`` threads for what is computed inside."""
    from threadpoolctl import threadpool_limits

    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)
    with threadpool_limits(count):
        yield


def routers_of_job(job: Path, outcomes: Outcomes) -> Iterator[RouterScores]:
    """The routers of a job's test cases that have scored all queries, not all alike. Equal ones count once."""
    workspace = read_workspace(job)
    places = {query: place for place, query in enumerate(outcomes.queries)}
    told: set[bytes] = set()
    for case in workspace.cases:
        rows = case.answers()
        name, given = scores_of(rows)
        dataset = workspace.dataset(str(case.config["dataset"])) if given and case.config.get("dataset") else None
        scores, sent = np.full(len(outcomes), np.nan), np.zeros(len(outcomes))
        seconds = []
        for index, value in given.items() if dataset else ():
            place = places.get(dataset.queries[index]) if dataset and index < len(dataset.queries) else None
            if place is not None:
                decision = rows[index][1]["routing"]
                scores[place], sent[place] = value, float(bool(decision.get("hard")))
                seconds += [decision["seconds"]] if isinstance(decision.get("seconds"), (int, float)) else []
        if np.isfinite(scores).all() and np.ptp(scores) > 0 and (key := scores.tobytes() + sent.tobytes()) not in told:
            told.add(key)
            yield RouterScores(name, scores, sent, seconds=np.array(seconds, dtype=np.float64))


def _seen_of_job(job: Path) -> Iterator[NDArray[np.uint64]]:
    """Digests of what the job's trained routers were trained with, where their folders are still there."""
    for case in read_workspace(job).cases:
        for folder in _paths(case.module("hard_example_mining").get("hyperparameters")):
            if (folder / SEEN).is_file():
                yield read_seen(folder)


def _paths(value: Any) -> Iterator[Path]:
    """The folders of trained routers that hyperparameters name, those of routers inside among them."""
    for name, item in value.items() if isinstance(value, Mapping) else ():
        if name == "path" and isinstance(item, str):
            yield Path(item)
        elif name == "router":
            yield from _paths(item)
        elif name == "routers" and isinstance(item, Mapping):
            yield from map(Path, item.values())


def undefined_metrics(inputs: EvaluationInputs, policies: Sequence[RoutingPolicy]) -> Iterator[str]:
    outcomes = inputs.outcomes
    yield from _of_pool(outcomes) if isinstance(outcomes, Pool) else _of_pair(outcomes)
    for one in policies:
        router = one.router
        if np.ptp(router.scores) == 0:
            yield f"{router.name} gives all queries the same score: it routes as random does"
        if one.chosen is None and isinstance(outcomes, Pool):
            yield f"{router.name}: scores are not all from 0 to 1: give --threshold for its decisions"
        if router.labels is not None and not 0 <= router.scores.min() <= router.scores.max() <= 1:
            yield f"{router.name}: scores are not all from 0 to 1, so they have no calibration error"


def _of_pool(pool: Pool) -> Iterator[str]:
    means = 100 * pool.quality.mean(axis=0)
    yield f"from the cheapest to the dearest model: {', '.join(pool.models)}; the best alone is {pool.best}"
    if means[-1] - means[0] <= 100 * ROUNDING:
        yield (
            f"{pool.models[-1]}, the dearest, is not better than {pool.models[0]}, the cheapest ({means[-1]:.2f} % and "
            f"{means[0]:.2f} %): PGR, APGR, CPT and ParetoDist are not defined"
        )


def _of_pair(outcomes: Outcomes) -> Iterator[str]:
    edge, cloud = 100 * outcomes.edge.mean(), 100 * outcomes.cloud.mean()
    if not (outcomes.gain > 0).any():
        yield "the cloud answers no query better: AUROC, recall and F1 are not defined"
    elif (outcomes.gain > 0).all():
        yield "the cloud answers every query better: AUROC is not defined"
    if outcomes.gain.mean() <= ROUNDING:
        yield (
            f"the cloud is not better than the edge on the whole ({cloud:.2f} % and {edge:.2f} %): PGR, APGR and CPT "
            "are not defined"
        )
    if outcomes.cloud_cost is None and outcomes.edge_cost is not None:
        yield "there is edge_cost without cloud_cost: there are no figures by money"
    elif outcomes.cloud_cost is not None:
        ours = 0.0 if outcomes.edge_cost is None else float(outcomes.edge_cost.mean())
        if outcomes.cloud_cost.mean() <= ours:
            yield "the cloud costs no more than the edge on the whole: there is no curve by money"


KEYS = ("query_id", "row")


def read_scores(path: Path, outcomes: Outcomes | Pool) -> dict[str, Floats]:
    """CSV with the columns ``router``, ``score`` and ``query_id`` (the ``id`` of outcomes) or ``row`` (from 0), and
    ``model``, where scores are the expected quality of each model of a pool.

    Router -> its scores, [queries] or [queries, models], NaN where there is none. UserError with file and line.
    """
    models = outcomes.models if isinstance(outcomes, Pool) else ()
    if not path.name.lower().endswith((".csv", ".csv.gz")):
        raise UserError(f"--scores {path}: scores are read from files that end in .csv or .csv.gz")
    found: dict[str, Floats] = {}
    places: Mapping[str, int] | None = None
    for where, record in records(path):
        key = _key(record, path)
        places = _places(key, outcomes, path) if places is None else places
        text, name = record[key].strip(), record["router"].strip()
        if text not in places:
            hint = " (rows are counted from 0)" if key == "row" else ""
            raise UserError(f"{where}: no outcome has the {key} {text[:40]!r}; there are {len(outcomes)}{hint}")
        if not name:
            raise UserError(f"{where}: router is empty")
        of_models = bool(models) and "model" in record
        shape = (len(outcomes), len(models)) if of_models else (len(outcomes),)
        column = found.setdefault(name, np.full(shape, np.nan))
        if of_models:
            model = record["model"].strip()
            if model not in models:
                known = ", ".join(models)
                raise UserError(f"{where}: no model of the pool is named {model[:40]!r}; there are {known}")
            column, name = column[:, models.index(model)], f"{name}, {model},"
        if not math.isnan(column[places[text]]):
            raise UserError(f"{where}: {name} has a second score for the query with {key} {text[:40]!r}")
        column[places[text]] = _score(record["score"], where)
    if not found:
        raise UserError(f"{path}: there are no scores in it")
    return found


def _key(record: Mapping[str, str], path: Path) -> str:
    """The column that names the query. UserError where a column is missing."""
    key = next((name for name in KEYS if name in record), "")
    missing = [name for name in ("router", "score") if name not in record] + ["query_id or row"] * (not key)
    if missing:
        there = ", ".join(filter(None, record)) or "nothing"
        raise UserError(f"{path}: the column {missing[0]} is missing; found: {there}")
    return key


def _places(key: str, outcomes: Outcomes | Pool, path: Path) -> dict[str, int]:
    names = [query.id if key == "query_id" else str(place) for place, query in enumerate(outcomes.queries)]
    for name, count in Counter(names).items():
        if count > 1:
            raise UserError(f"{path}: two outcomes have the id {name!r}: name queries by the column row instead")
    return {name: place for place, name in enumerate(names)}


def _score(text: str, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise UserError(f"{where}: score must be a number, not {text[:40]!r}")
    return score
