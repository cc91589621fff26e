"""What feedback is learned, and when: sources in, observations out, the log and the saved router kept on the way."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.rows import row_of
from ianvs_specdec.benchmarks.scorers import scorer
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.adapted import KIND, AdaptedClassifier
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.logistic import Calibration
from ianvs_specdec.routing.learned.online import SIDES, Experience, OnlineLearner, grams_of
from ianvs_specdec.routing.lifelong.exploration import Exploration
from ianvs_specdec.routing.lifelong.feedback import Feedback, FeedbackFile, FeedbackLog, named
from ianvs_specdec.routing.outcomes.quality import share
from ianvs_specdec.routing.outcomes.recorded import Floats, digests, text_of

log = logging.getLogger(__name__)

REMEMBERED = 10_000
"""Answers that feedback may still come on, and feedbacks on answers that may still come: the newest of each."""
COSTLY = ("judge",)
"""Scorers that ask somebody, who wants to be paid: not for every answer."""


@dataclass(frozen=True, eq=False)
class AskedQuery:
    """What is to be known of a query to learn from an answer to it. ``score`` is the trained router's; ``digest`` tells
    its text from others; ``state`` is what a probe makes of it (see ``ProbeClassifier.directions``).
    """

    grams: NDArray[np.float32]
    group: str
    score: float
    digest: np.uint64
    state: Floats | None = None


def item_of(query: Query, score: float, state: Floats | None = None) -> AskedQuery:
    return AskedQuery(grams_of(query), query.group, score, digests([query])[0], state)


def name_of(query: Query) -> str:
    """What feedback on an answer to the query is kept under: its id, or else a digest of its text."""
    return query.id or named(text_of(query))


class Sources:
    """Where feedback comes from besides the scorer: a file, an endpoint, and what earlier runs received."""

    def __init__(self, feedback: Any, book: FeedbackLog) -> None:
        self._book = book
        self._known = {past.source for _, _, past in book.earlier}
        self._mutex = threading.Lock()
        # Of more than that the oldest are left to the next run: the log has them.
        self._received = deque(book.waiting.values(), maxlen=REMEMBERED)
        self._number = book.receipts
        self._file = FeedbackFile(Path(feedback)) if isinstance(feedback, str) and feedback != "scorer" else None
        if isinstance(feedback, Mapping):
            # Weakly, so that the port is free for the next router when this one goes.
            receive = weakref.WeakMethod(self._receive)
            from ianvs_specdec.routing.lifelong.feedback_server import FeedbackServer

            server = FeedbackServer(feedback, lambda item: take(item) if (take := receive()) else None)
            weakref.finalize(self, server.close)
            self.url = server.url
            log.warning("feedback is taken at %s", server.url)

    def new(self) -> Iterator[Feedback]:
        # No further than to what is here now: it may come in as fast as it is taken.
        for _ in range(len(self._received)):
            yield self._received.popleft()
        if self._file is not None:
            yield from (item for item in self._file.new() if item.source not in self._known)

    def _receive(self, feedback: Feedback) -> None:
        with self._mutex:
            self._number += 1
            kept = replace(feedback, source=f"{self._book.run}:{self._number}")
            self._book.received(kept)
            self._received.append(kept)


class Keeper:
    """Saves a router, whole or not at all, when it is called; ``to`` None: nowhere. What it has learned from is no more
    new to it than what it was trained with.
    """

    def __init__(self, router: TrainedRouter, to: Path | None) -> None:
        self._router, self._to = router, to
        self._seen: set[np.uint64] = set()
        self._unsaved = False
        self.answers = self.lessons = 0

    def saw(self, item: AskedQuery) -> None:
        self._seen.add(item.digest)

    def learned(self) -> None:
        self._unsaved = True
        self.lessons += 1

    def __call__(self) -> None:
        if self._to is not None:
            try:
                seen = np.fromiter(self._seen, dtype=np.uint64)
                replace(self._router, seen=np.union1d(self._router.seen, seen)).save(self._to)
            except OSError as error:
                message = f"what was learned cannot be saved in {self._to}: {error.strerror or error}"
                raise UserError(message, key="save_to") from error
        self._unsaved = False

    def last(self) -> None:
        """Save what has not been saved. Called when the router goes, where no error would be heard."""
        if self.answers and not self.lessons:
            log.warning("LifelongRouter: no feedback came on %d answers, so it has learned nothing", self.answers)
        if self._unsaved:
            try:
                self()
            except UserError as error:
                log.warning("%s", error)


class Lessons:
    """Learns one feedback after the other. Thread-safe; what is learned depends on the order of answers and feedback.

    ``answered`` is called after each answer. Then are learned: the scorer's opinion, if it is a source; what an earlier
    run learned at this place; and what has come in on answers that were given. ``keep`` is called with the router as it
    has become, after each ``every`` feedbacks and at the end.
    """

    def __init__(
        self,
        learner: OnlineLearner,
        exploration: Exploration,
        book: FeedbackLog,
        feedback: Any,
        keep: Keeper,
        every: int,
    ) -> None:
        self.learner, self._book, self._keep, self._every = learner, book, keep, every
        self.sources = Sources(feedback, book)
        self.exploration = exploration
        self._scored = feedback == "scorer"
        self._earlier = deque(sorted(book.earlier, key=lambda past: past[:2]))
        self._answers = self.count = 0
        # With the item, the model that has answered.
        self._given: OrderedDict[tuple[str, str], tuple[AskedQuery, str]] = OrderedDict()
        # Feedback on answers that may still come, the newest.
        self._pending: deque[Feedback] = deque(maxlen=REMEMBERED)
        self._told = self._full = False
        weakref.finalize(self, book.sync)
        self._mutex = threading.RLock()

    def answered(self, side: str, query: Query, item: AskedQuery, data: Any, response: Mapping[str, Any]) -> None:
        with self._mutex:
            self._answers += 1
            self._keep.answers = self._answers
            names = {name_of(query), named(text_of(query)), named(query.turns[0])}
            for name in names:
                _remember(self._given, (name, side), (item, str(response.get("model", ""))))
            if self._scored and (worth := self._worth(query, data, response)) is not None:
                self._learn(Feedback(name_of(query), side, worth))
            while self._earlier and self._earlier[0][0] <= self._answers:
                self._take(self._earlier.popleft()[2])
            for feedback in self.sources.new():
                self._take(feedback)
            for feedback in [one for one in self._pending if one.side == side and one.query in names]:
                self._pending.remove(feedback)
                self._learn(feedback)

    def told(self, side: str, item: AskedQuery, worth: float) -> None:
        """Learn what a program says, past the log."""
        with self._mutex:
            self._count_in(side, item, worth)

    def _worth(self, query: Query, data: Any, response: Mapping[str, Any]) -> float | None:
        row = row_of(data)
        if not isinstance(row, Mapping) or "gold" not in row or query.scorer in COSTLY:
            if not self._told:
                log.warning("feedback: scorer: rows without an answer, or with a judge, have no feedback")
            self._told = True
            return None
        answers = [turn["completion"] for turn in response["turns"]]
        return share(query.scorer, scorer(query.scorer)(answers, row["gold"]))

    def _take(self, feedback: Feedback) -> None:
        """Learn it now, or when the answer comes that it is on."""
        key = feedback.query, feedback.side
        if key in self._given:
            self._learn(feedback)
        else:
            if len(self._pending) == REMEMBERED and not self._full:
                self._full = True
                log.warning("feedback: more than %d wait for their answers; the oldest are passed over", REMEMBERED)
            self._pending.append(feedback)

    def _learn(self, feedback: Feedback) -> None:
        item, model = self._given[feedback.query, feedback.side]
        # Test cases with other models may have a router with the same settings, and so the same log.
        if feedback.model not in ("", model):
            return
        self._book.learned(replace(feedback, model=model), self._answers, self.count)
        self._count_in(feedback.side, item, feedback.score)

    def _count_in(self, side: str, item: AskedQuery, worth: float) -> None:
        self.take_in(side, item, worth)
        self.count += 1
        self._keep.learned()
        if self.count % self._every == 0:
            self._keep()

    def take_in(self, side: str, item: AskedQuery, worth: float) -> None:
        """Learn what is no feedback of this run."""
        observation = Experience(item.grams, item.group, SIDES.index(side), item.score, worth, item.state)
        self.exploration.observe(item.group, observation.side, observation.residual)
        self.learner.observe(observation)
        self._keep.saw(item)


def adapted(base: TrainedRouter, learner: OnlineLearner) -> TrainedRouter:
    """A trained router that scores as ``base`` does with what ``learner`` has learned."""
    classifier = AdaptedClassifier(base, learner)
    return replace(base, kind=KIND, classifier=classifier, calibration=Calibration())


def _remember(memory: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    memory[key] = value
    memory.move_to_end(key)
    if len(memory) > REMEMBERED:
        memory.popitem(last=False)
