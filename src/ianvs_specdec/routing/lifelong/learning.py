"""What feedback is learned, and when: sources in, observations out, the log and the saved router kept on the way."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.rows import row_of
from ianvs_specdec.benchmarks.scorers import scorer
from ianvs_specdec.common.errors import UserError, warn_once
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.learned.online import KIND, SIDES, AdaptedClassifier, Experience, OnlineLearner, grams_of
from ianvs_specdec.routing.lifelong.feedback import SCORER, Feedback, FeedbackFile, FeedbackLog, named
from ianvs_specdec.routing.outcomes.quality import share
from ianvs_specdec.routing.outcomes.recorded import Floats, digests, text_of

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Answers that feedback may still come on, and feedbacks on answers that may still come: the newest of each."""
COSTLY = ("judge",)
"""Scorers that cost money: not for every answer."""


@dataclass(frozen=True, eq=False)
class QueryFeatures:
    """The facts of a query that learning needs, see ``Experience``. ``digest``: of its text."""

    grams: NDArray[np.float32]
    group: str
    score: float
    digest: np.uint64
    state: Floats | None = None


def query_features(query: Query, score: float, state: Floats | None = None) -> QueryFeatures:
    return QueryFeatures(grams_of(query), query.group, score, digests([query])[0], state)


def name_of(query: Query) -> str:
    return query.id or named(text_of(query))


BOOST = 6.0
MOST = 0.5
FEW = 10
"""With fewer feedbacks from a group than this, little is known of a model's answers there."""
FAST, SLOW = 0.1, 0.02
DIFFERENT = 0.2
"""About twice the standard deviation of the fast average of right and wrong answers."""


@dataclass
class _Average:
    fast: float = 0.0
    slow: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.count += 1
        # At first the plain mean.
        self.fast += max(FAST, 1 / self.count) * (value - self.fast)
        self.slow += max(SLOW, 1 / self.count) * (value - self.slow)


class Exploration:
    """Flips ``share`` of the decisions, ``BOOST`` times as many in a group with little feedback on the other model's
    answers, or with changed answers: a fast and a slow moving average of the residuals differ.
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
    """Learns one feedback after the other. Thread-safe.

    After each answer it learns the scorer's opinion, if that is a source; the feedback that an earlier run learned at
    this place; and what has come in on answers that were given. ``router``, which scores by ``learner``, is saved in
    ``to`` after each ``every`` feedbacks and at the end; queries with feedback count as its training queries.
    """

    def __init__(
        self,
        router: TrainedRouter,
        learner: OnlineLearner,
        exploration: Exploration,
        book: FeedbackLog,
        feedback: Any,
        to: Path | None,
        every: int,
    ) -> None:
        self.learner, self.exploration, self.count = learner, exploration, 0
        self._router, self._to, self._every, self._unsaved = router, to, every, False
        self._seen: set[np.uint64] = set()
        self._book, self._earlier = book, deque(book.earlier)
        self._known = {line.source for line in book.earlier}
        self.scored, self._answers = feedback == "scorer", 0
        # With the item, the model that has answered.
        self._given: OrderedDict[tuple[str, str], tuple[QueryFeatures, str]] = OrderedDict()
        # Feedback on answers that may still come, the newest.
        self._pending: deque[Feedback] = deque(maxlen=REMEMBERED)
        self._mutex = threading.RLock()
        # What came in at the endpoint. Of more than that the oldest are left to the next run: the log has them.
        self._received, self._receipts = deque(book.waiting.values(), maxlen=REMEMBERED), book.receipts
        self._file = FeedbackFile(Path(feedback)) if isinstance(feedback, str) and not self.scored else None
        self._server, self.url = None, None
        if isinstance(feedback, Mapping):
            from ianvs_specdec.routing.lifelong.feedback_server import FeedbackServer

            self._server = FeedbackServer(feedback, self._receive)
            self.url = self._server.url
            log.warning("feedback is taken at %s", self.url)

    def answered(self, side: str, query: Query, item: QueryFeatures, data: Any, response: Mapping[str, Any]) -> None:
        with self._mutex:
            self._answers += 1
            names, model = (
                {name_of(query), named(text_of(query)), named(query.turns[0])},
                str(response.get("model", "")),
            )
            for name in names:
                _remember(self._given, (name, side), (item, model))
            if self.scored and (worth := _worth(query, data, response)) is not None:
                source = f"{SCORER}{model}:{self._answers}"
                self._learn(Feedback(name_of(query), _side(side), worth, source))
            while self._earlier and self._earlier[0].answers <= self._answers:
                self._take(self._earlier.popleft())
            for feedback in self._new():
                self._take(feedback)
            for feedback in [one for one in self._pending if one.side == side and one.query in names]:
                self._pending.remove(feedback)
                self._learn(feedback)

    def learn(self, side: str, worth: float, item: QueryFeatures) -> None:
        with self._mutex:
            self._count_in(side, item, worth)

    def take_in(self, side: str, item: QueryFeatures, worth: float) -> None:
        """Learn without counting it as feedback of this run."""
        observation = Experience(item.grams, item.group, SIDES.index(side), item.score, worth, item.state)
        self.exploration.observe(item.group, observation.side, observation.residual)
        self.learner.observe(observation)
        self._seen.add(item.digest)

    def close(self) -> None:
        """Save what has not been saved. Called when the router goes, where no error would be heard."""
        if self._server is not None:
            self._server.close()
        self._book.sync()
        if self._answers and not self.count:
            log.warning("LifelongRouter: no feedback came on %d answers, so it has learned nothing", self._answers)
        if self._unsaved:
            try:
                self._save()
            except UserError as error:
                log.warning("%s", error)

    def _new(self) -> Iterator[Feedback]:
        # No further than to what is here now: it may come in as fast as it is taken.
        for _ in range(len(self._received)):
            yield self._received.popleft()
        if self._file is not None:
            yield from (item for item in self._file.new() if item.source not in self._known)

    def _receive(self, feedback: Feedback) -> None:
        with self._mutex:
            self._receipts += 1
            kept = replace(feedback, source=f"{self._book.run}:{self._receipts}")
            self._book.received(kept)
            self._received.append(kept)

    def _take(self, feedback: Feedback) -> None:
        """Learn it now, or when the answer comes that it is on."""
        if (feedback.query, feedback.side) in self._given:
            self._learn(feedback)
            return
        if len(self._pending) == REMEMBERED:
            warn_once(f"feedback: more than {REMEMBERED} wait for their answers; the oldest are passed over")
        self._pending.append(feedback)

    def _learn(self, feedback: Feedback) -> None:
        item, model = self._given[feedback.query, feedback.side]
        # Test cases with other models may have a router with the same settings, and so the same log.
        if feedback.model in ("", model):
            self._book.learned(replace(feedback, model=model), self._answers, self.count)
            self._count_in(feedback.side, item, feedback.score)

    def _count_in(self, side: str, item: QueryFeatures, worth: float) -> None:
        self.take_in(side, item, worth)
        self.count += 1
        self._unsaved = True
        if self.count % self._every == 0:
            self._save()

    def _save(self) -> None:
        if self._to is not None:
            seen = np.union1d(self._router.seen, np.fromiter(self._seen, dtype=np.uint64))
            try:
                dataclasses.replace(self._router, seen=seen).save(self._to)
            except OSError as error:
                message = f"what was learned cannot be saved in {self._to}: {error.strerror or error}"
                raise UserError(message, key="save_to") from error
        self._unsaved = False


def _worth(query: Query, data: Any, response: Mapping[str, Any]) -> float | None:
    row = row_of(data)
    if not isinstance(row, Mapping) or "gold" not in row or query.scorer in COSTLY:
        warn_once("feedback: scorer: rows without an answer, or with a judge, have no feedback")
        return None
    answers = [turn["completion"] for turn in response["turns"]]
    return share(query.scorer, scorer(query.scorer)(answers, row["gold"]))


def _side(side: str) -> Literal["edge", "cloud"]:
    return "edge" if side == "edge" else "cloud"


def adapted(base: TrainedRouter, learner: OnlineLearner) -> TrainedRouter:
    classifier = AdaptedClassifier(base, learner)
    return dataclasses.replace(base, kind=KIND, classifier=classifier, calibration=Calibration())


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > REMEMBERED:
        memory.popitem(last=False)
