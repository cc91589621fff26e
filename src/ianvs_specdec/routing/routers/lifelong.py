"""LifelongRouter: a trained router that goes on learning, from feedback on the answers."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from ianvs_specdec.benchmarks.rows import query_of_row
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Count, ExistingPath, Share, Text, validator
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin import observers
from ianvs_specdec.records.identity import digest
from ianvs_specdec.records.run import current_repeat, current_run, job_folder, on_worker
from ianvs_specdec.routing.learned.folder import TrainedRouter, check_folder, is_probe
from ianvs_specdec.routing.learned.online import SIDES, AdaptedClassifier, OnlineLearner
from ianvs_specdec.routing.learned.probe import ProbeClassifier
from ianvs_specdec.routing.lifelong.feedback import FeedbackLog, check_feedback, named
from ianvs_specdec.routing.lifelong.learning import Exploration, FeedbackLearner, QueryFeatures, adapted, query_features
from ianvs_specdec.routing.outcomes.hidden_states import Halves
from ianvs_specdec.routing.outcomes.recorded import load_outcomes, text_of
from ianvs_specdec.routing.routers.base import Decision, Modules, Router
from ianvs_specdec.routing.routers.learned import UNANSWERED, LearnedRouter, RouterFolder, score_encoded
from ianvs_specdec.routing.routers.random_router import uniform

FOLDER, LOG, LEARNED = "lifelong", "feedback.jsonl", "router"
REPLAYED = 128
ASKED = 4096
"""Queries whose score is remembered until the answer comes."""


def _check_saved(folder: str) -> None:
    try:
        check_folder(Path(folder))
    except UserError as error:
        raise UserError(str(error).replace("--out", "save_to"), key="save_to") from error


FeedbackSource = Annotated[Any, validator(check_feedback)]
SavedFolder = Annotated[Text, validator(_check_saved)]


class LifelongRouter(Router):
    """A trained router's score, corrected by feedback (see ``routing.learned.online``).

    - ``path``: a trained router's folder, or one that a LifelongRouter saved, to continue from;
    - ``feedback``: ``scorer``, a file of JSON lines, or an endpoint (see ``routing.lifelong.feedback``);
    - ``explore``: share of the decisions that are flipped (see ``learning.Exploration``), drawn by ``seed`` and the
      query's content;
    - ``replay``: a file of outcomes to learn from first;
    - ``save_every``, ``save_to``: feedbacks between saves, and the folder (default: in the job's).

    All feedback is kept in the job's folder: a run that is resumed or repeated learns the same feedback after the same
    answers. With several queries at a time, feedback is learned in the order of the answers.
    """

    concurrent: ClassVar[bool] = True

    def __init__(
        self,
        path: RouterFolder,
        threshold: Share | None = None,
        feedback: FeedbackSource = "scorer",
        explore: Annotated[float, Field(ge=0, le=0.5)] = 0.05,
        seed: int = 0,
        replay: ExistingPath | None = None,
        save_every: Count = 32,
        save_to: SavedFolder | None = None,
    ) -> None:
        self.check_hyperparameters(locals())
        if on_worker():
            raise UserError(
                "LifelongRouter learns in one process, and feedback would be lost with a worker's folder: run "
                "its job without runner: ray"
            )
        trained = TrainedRouter.load(Path(path))
        super().__init__(trained.threshold if threshold is None else threshold)
        self.explore, self.seed = float(explore), seed
        goes_on = trained.classifier if isinstance(trained.classifier, AdaptedClassifier) else None
        self.base = goes_on.base if goes_on else trained
        learner = goes_on.learner if goes_on else OnlineLearner()
        settings = [path, threshold, feedback, explore, seed, replay, save_every, current_repeat()]
        own = job_folder() / FOLDER / digest(settings)[:16] if os.environ.get("RESULT_SAVED_URL") else None
        book = FeedbackLog(own / LOG if own else None, *current_run())
        to = Path(save_to) if save_to else own / LEARNED if own else None
        saved = replace(adapted(self.base, learner), threshold=self.threshold, seen=trained.seen)
        self._exploration = Exploration(self.explore)
        self._lessons = FeedbackLearner(saved, learner, self._exploration, book, feedback, to, save_every)
        weakref.finalize(self, self._lessons.close)
        self._asked: OrderedDict[tuple[str, str], QueryFeatures] = OrderedDict()
        self._mutex = threading.Lock()
        if replay and goes_on is None:
            self._replay(Path(replay))
        observers.subscribe(self)

    @classmethod
    def check_together(cls, given: Mapping[str, Any]) -> None:
        if given["replay"] and is_probe(Path(given["path"])):
            reason = "has no hidden states of the edge, which the probe under path looks at: leave it out"
            raise UserError(f"replay: a file of outcomes {reason}", key="replay")

    @classmethod
    def check_test_case(cls, hyperparameters: Mapping[str, Any], modules: Modules) -> None:
        LearnedRouter.check_test_case(hyperparameters, modules)

    @property
    def probes(self) -> bool:
        return self.base.probe is not None

    @property
    def feedback_count(self) -> int:
        return self._lessons.count

    @property
    def url(self) -> str | None:
        return self._lessons.url

    def score(self, query: Query) -> float:
        return self._corrected(self._item(query))

    def _corrected(self, item: QueryFeatures) -> float:
        return self._lessons.learner.solution.score(item.score, item.grams, item.group, item.state)

    def decide(self, data: Any) -> Decision:
        query = query_of_row(data)
        if (probe := self.base.probe) is None:
            return self.decided(query, self.score(query))
        score, waited = score_encoded(data, probe, lambda states: self._corrected(self._read(query, probe, states)))
        if score is None:
            return Decision(1.0, True, UNANSWERED, waited=waited)
        return replace(self.decided(query, score), waited=waited)

    def decided(self, query: Query, score: float) -> Decision:
        hard = bool(score >= self.threshold)
        if uniform(self.seed, "explore", query.to_json()) < self._exploration.of(query.group, int(not hard)):
            return Decision(score, not hard, "explore")
        return Decision(score, hard)

    def learn(self, query: Query, side: str, worth: float) -> None:
        """Learn the worth of the answer of ``side``, from 0 to 1. Not kept in the log."""
        self._lessons.learn(side, worth, self._item(query))

    def feedback_callback(self, query: Query) -> Callable[[str, float], None] | None:
        """As ``learn``, for later: nothing of the query's text is kept. None where a probe has not read it."""
        unread = self.probes and _key(query) not in self._asked
        return None if unread else partial(self._lessons.learn, item=self._item(query))

    def disable_scorer(self) -> None:
        """The rows to come have no gold answers for the benchmark's scorer."""
        self._lessons.scored = False

    def began(self, side: str, data: Any) -> None:
        """Nothing is learned from a question."""

    def ended(self, side: str, data: Any, response: Mapping[str, Any] | None) -> None:
        if response is None or response.get("error") or not response.get("turns") or response.get("stopped"):
            return
        query = query_of_row(data)
        with self._mutex:
            item = self._asked.get(_key(query))
        # What was not read for it, or too long ago, teaches a probe nothing.
        if item is None and self.probes:
            return
        self._lessons.answered(side, query, item or self._item(query), data, response)

    def _item(self, query: Query) -> QueryFeatures:
        with self._mutex:
            item = self._asked.get(_key(query))
        if item is not None:
            return item
        if (probe := self.base.probe) is not None:
            return self._read(query, probe, probe.states_of([query]))
        return self._remembered(query, query_features(query, float(self.base.score([query])[0])))

    def _read(self, query: Query, probe: ProbeClassifier, states: Halves) -> QueryFeatures:
        score, state = float(self.base.score_states([query], states)[0]), probe.directions(states)[0]
        return self._remembered(query, query_features(query, score, state))

    def _remembered(self, query: Query, item: QueryFeatures) -> QueryFeatures:
        with self._mutex:
            self._asked[_key(query)] = item
            if len(self._asked) > ASKED:
                self._asked.popitem(last=False)
        return item

    def _replay(self, path: Path) -> None:
        outcomes = load_outcomes(path)
        chosen = outcomes.take(np.sort(np.random.default_rng(self.seed).permutation(len(outcomes))[:REPLAYED]))
        columns = (self.base.score(chosen.queries), chosen.edge, chosen.cloud)
        for query, score, *worths in zip(chosen.queries, *map(np.ndarray.tolist, columns), strict=True):
            item = query_features(query, score)
            for side, worth in zip(SIDES, worths, strict=True):
                self._lessons.take_in(side, item, worth)
        self._lessons.learner.solve()


def _key(query: Query) -> tuple[str, str]:
    """What learning depends on, without a text."""
    return query.group, named(text_of(query))
