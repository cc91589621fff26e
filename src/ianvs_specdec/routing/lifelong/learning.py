"""Learning from feedback: matches feedback with answers, updates the online learner, and saves the router."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.rows import row_of
from ianvs_specdec.benchmarks.scorers import scorer
from ianvs_specdec.common.errors import UserError, warn_once
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.learned.online import KIND, SIDES, AdaptedClassifier, Observation, OnlineLearner, grams_of
from ianvs_specdec.routing.lifelong.feedback import SCORER, Feedback, FeedbackFile, FeedbackLog, named
from ianvs_specdec.routing.outcomes.quality import share
from ianvs_specdec.routing.outcomes.recorded import Floats, digests, text_of

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Maximum number of answers without feedback, and of feedbacks without an answer, that are kept."""
COSTLY = ("judge",)
"""Scorers that cost money, which give no feedback."""


@dataclass(frozen=True, eq=False)
class QueryFeatures:
    """The features of a query that learning uses, see ``Observation``. ``digest``: of its text."""

    grams: NDArray[np.float32]
    group: str
    score: float
    digest: np.uint64
    state: Floats | None = None


def query_features(query: Query, score: float, state: Floats | None = None) -> QueryFeatures:
    return QueryFeatures(grams_of(query), query.group, score, digests([query])[0], state)


def name_of(query: Query) -> str:
    return query.id or named(text_of(query))


BOOST, MOST = 6.0, 0.5
"""Factor of the exploration of little known or changed groups, and the maximum probability."""
FEW = 10
"""A group with less feedback on a model counts as little known."""
FAST, SLOW = 0.1, 0.02
"""Weights of a new value in the moving averages."""
DIFFERENT = 0.2
"""Difference of the averages that indicates a change: about two standard deviations of the fast one."""


@dataclass
class _Average:
    fast: float = 0.0
    slow: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        # The plain mean at first.
        self.fast += max(FAST, 1 / self.count) * (value - self.fast)
        self.slow += max(SLOW, 1 / self.count) * (value - self.slow)


class Exploration:
    """Flips ``share`` of the decisions, and ``BOOST`` times as many in groups that are little known or have changed.

    A group is little known if the other model has little feedback there. It has changed if a fast and a slow moving
    average of the residuals differ.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self._averages: dict[tuple[str, int], _Average] = {}

    def observe(self, group: str, side: int, residual: float) -> None:
        self._averages.setdefault((group, side), _Average()).add(residual)

    def of(self, group: str, side: int) -> float:
        """The probability of flipping a decision in favour of ``side``."""
        known = [found for either in (0, 1) if (found := self._averages.get((group, either)))]
        own = self._averages.get((group, side))
        new = own is None or own.count < FEW
        changed = any(abs(average.fast - average.slow) > DIFFERENT for average in known)
        return min(MOST, self.share * (BOOST if new or changed else 1.0))


class FeedbackLearner:
    """Learns from feedback, one at a time. Thread-safe.

    Each answer triggers the scorer's feedback, if that is a source, the feedback that an earlier run learned after this
    answer, and new feedback on answered queries. ``router``, which scores by ``learner``, is saved in ``to`` every
    ``every`` feedbacks and at the end. Queries with feedback count as training queries.
    """

    def __init__(
        self,
        router: TrainedRouter,
        learner: OnlineLearner,
        exploration: Exploration,
        feedback_log: FeedbackLog,
        feedback: Any,
        to: Path | None,
        every: int,
    ) -> None:
        self.learner, self.exploration, self.count = learner, exploration, 0
        self._router, self._to, self._every, self._unsaved = router, to, every, False
        self._seen: set[np.uint64] = set()
        self._log, self._earlier = feedback_log, deque(feedback_log.earlier)
        self._known = {line.source for line in feedback_log.earlier}
        self.scored, self._answers = feedback == "scorer", 0
        # By query and side: the query's features and the model that answered.
        self._answered: OrderedDict[tuple[str, str], tuple[QueryFeatures, str]] = OrderedDict()
        # Feedback without an answer so far.
        self._pending: deque[Feedback] = deque(maxlen=REMEMBERED)
        self._mutex = threading.RLock()
        # From the endpoint. If there are more, the next run learns the oldest from the log.
        self._received, self._receipts = deque(feedback_log.waiting.values(), maxlen=REMEMBERED), feedback_log.receipts
        self._file = FeedbackFile(Path(feedback)) if isinstance(feedback, str) and not self.scored else None
        self._server, self.url = None, None
        if isinstance(feedback, Mapping):
            from ianvs_specdec.routing.lifelong.feedback_server import FeedbackServer

            self._server = FeedbackServer(feedback, self._receive)
            self.url = self._server.url
            log.warning("feedback is accepted at %s", self.url)

    def answered(self, side: str, query: Query, item: QueryFeatures, data: Any, response: Mapping[str, Any]) -> None:
        with self._mutex:
            self._answers += 1
            model = str(response.get("model", ""))
            names = {name_of(query), named(text_of(query)), named(query.turns[0])}
            for name in names:
                self._answered[name, side] = (item, model)
                self._answered.move_to_end((name, side))
                if len(self._answered) > REMEMBERED:
                    self._answered.popitem(last=False)
            if self.scored and (worth := _worth(query, data, response)) is not None:
                source = f"{SCORER}{model}:{self._answers}"
                self._learn(Feedback(name_of(query), cast(Any, side), worth, source))
            while self._earlier and self._earlier[0].answers <= self._answers:
                self._learn_or_defer(self._earlier.popleft())
            for feedback in self._incoming():
                self._learn_or_defer(feedback)
            for feedback in [one for one in self._pending if one.side == side and one.query in names]:
                self._pending.remove(feedback)
                self._learn(feedback)

    def learn(self, side: str, worth: float, item: QueryFeatures) -> None:
        with self._mutex:
            self.observe(side, item, worth)
            self.count += 1
            self._unsaved = True
            if self.count % self._every == 0:
                self._save()

    def observe(self, side: str, item: QueryFeatures, worth: float) -> None:
        """Learn an outcome that does not count as feedback of this run."""
        observation = Observation(item.grams, item.group, SIDES.index(side), item.score, worth, item.state)
        self.exploration.observe(item.group, observation.side, observation.residual)
        self.learner.observe(observation)
        self._seen.add(item.digest)

    def close(self) -> None:
        """Save unsaved changes. Called as a finalizer, so errors are logged."""
        if self._server is not None:
            self._server.close()
        self._log.sync()
        if self._answers and not self.count:
            log.warning("LifelongRouter has learned nothing: there was no feedback on %d answers", self._answers)
        if self._unsaved:
            try:
                self._save()
            except UserError as error:
                log.warning("%s", error)

    def _incoming(self) -> Iterator[Feedback]:
        # Bounded, since feedback may arrive as fast as it is consumed.
        for _ in range(len(self._received)):
            yield self._received.popleft()
        if self._file is not None:
            yield from (item for item in self._file.new() if item.source not in self._known)

    def _receive(self, feedback: Feedback) -> None:
        with self._mutex:
            self._receipts += 1
            kept = replace(feedback, source=f"{self._log.run}:{self._receipts}")
            self._log.received(kept)
            self._received.append(kept)

    def _learn_or_defer(self, feedback: Feedback) -> None:
        """Learn the feedback, or keep it until its query is answered."""
        if (feedback.query, feedback.side) in self._answered:
            self._learn(feedback)
            return
        if len(self._pending) == REMEMBERED:
            warn_once(f"feedback: more than {REMEMBERED} wait for their answers; the oldest are skipped")
        self._pending.append(feedback)

    def _learn(self, feedback: Feedback) -> None:
        item, model = self._answered[feedback.query, feedback.side]
        # Test cases with other models and the same router settings share the log.
        if feedback.model in ("", model):
            self._log.learned(replace(feedback, model=model), self._answers, self.count)
            self.learn(feedback.side, feedback.score, item)

    def _save(self) -> None:
        if self._to is not None:
            seen = np.union1d(self._router.seen, np.fromiter(self._seen, dtype=np.uint64))
            try:
                dataclasses.replace(self._router, seen=seen).save(self._to)
            except OSError as error:
                message = f"the router cannot be saved in {self._to}: {error.strerror or error}"
                raise UserError(message, key="save_to") from error
        self._unsaved = False


def _worth(query: Query, data: Any, response: Mapping[str, Any]) -> float | None:
    row = row_of(data)
    if not isinstance(row, Mapping) or "gold" not in row or query.scorer in COSTLY:
        warn_once("feedback: scorer: rows without an answer, or with a judge, get no feedback")
        return None
    answers = [turn["completion"] for turn in response["turns"]]
    return share(query.scorer, scorer(query.scorer)(answers, row["gold"]))


def adapted(base: TrainedRouter, learner: OnlineLearner) -> TrainedRouter:
    classifier = AdaptedClassifier(base, learner)
    return dataclasses.replace(base, kind=KIND, classifier=classifier, calibration=Calibration())
