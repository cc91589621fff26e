"""Scorer ``judge``: a language model behind an API rates answers from 1 to 10, as in MT-Bench.

Judgments of a job are in its journal, with their prompts and rule, so that nothing is judged twice.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Self

from pydantic import Field

from ianvs_specdec.backends.api.backend import APIBasedLLM
from ianvs_specdec.benchmarks.judge_prompts import SHIPPED, PromptSet, conversations, rating, read_prompts, rule
from ianvs_specdec.common.errors import AnswerError, UserError, warn_once
from ianvs_specdec.common.settings import Count, Settings, Text, validated
from ianvs_specdec.common.types import Message, Sampling
from ianvs_specdec.records.configuration import Configuration
from ianvs_specdec.records.identity import FileDigests, digest
from ianvs_specdec.records.journal import Journal

log = logging.getLogger(__name__)

Pairs = Sequence[tuple[Sequence[str], Any]]
"""Of each query: the answers of all turns, and the row's answer."""

Verdict = tuple[float | None, list[str]]
"""A query's score, and the reasons if it has none."""

SIDE = "judge"
MAX_FIRST_FAILURES = 5
"""Failures before the first success after which the judge counts as unavailable."""

MAX_SHOWN = 120
"""Characters of a judgment in messages."""

_OWN_OPTIONS = ("base_url", "key_env", "timeout", "deadline", "retries", "retry_budget", "rate")
"""Settings of the API back end, there with the prefix ``api_``."""


class JudgeSettings(Settings):
    """The hyperparameters ``judge_...``; None = the default of the API back end."""

    model: Text = Field(description="the name that the judge's server knows")
    base_url: Text | None = Field(None, description="as api_base_url")
    key_env: Text | None = Field(None, description="as api_key_env")
    prompts: str = Field("", description="a file like FastChat's judge_prompts.jsonl; by default specdec-judge-v1")
    concurrency: Count = Field(8, description="concurrent judgments")
    timeout: float | None = Field(None, description="as api_timeout")
    deadline: float | None = Field(None, description="as api_deadline")
    retries: int | None = Field(None, description="as api_retries")
    retry_budget: float | None = Field(None, description="as api_retry_budget")
    rate: float | None = Field(None, description="as api_rate")
    max_tokens: Count = Field(2048, description="maximum tokens of a judgment")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f"judge_{name}" for name in cls.model_fields)

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self | None:  # type: ignore[override]
        """From all hyperparameters; None without ``judge_model``. No requests. Raises UserError with the ``key``."""
        given = {name.removeprefix("judge_"): value for name in cls.names() if (value := values.get(name)) is not None}
        if "model" not in given:
            if given:
                key = f"judge_{next(iter(given))}"
                raise UserError(f"{key} is set, but no judge_model", key=key)
            return None
        try:
            settings = validated(cls, given)
        except UserError as error:
            raise UserError(f"judge_{error}", key=f"judge_{error.key}") from error
        if lack := settings.llm().unready():
            warn_once(f"{_as_judge(lack)}. Until then, only judgments in the journal are available")
        settings.prompt_set()
        return settings

    def prompt_set(self) -> PromptSet:
        """The judge's prompts. Raises UserError for an invalid file."""
        try:
            return read_prompts(Path(self.prompts) if self.prompts else SHIPPED)
        except UserError as error:
            raise UserError(str(error), key="judge_prompts") from error

    def llm(self) -> APIBasedLLM:
        """The judge, not connected yet."""
        own = {f"api_{name}": getattr(self, name) for name in _OWN_OPTIONS if getattr(self, name) is not None}
        try:
            return APIBasedLLM(self.model, **own)
        except UserError as error:
            raise _as_judge(error) from error

    def to_json(self) -> dict[str, Any]:
        return self.model_dump()


def judge(answers: Sequence[str], gold: Any) -> float | None:
    """Mean rating of the turns, 1 to 10; None without a judge, or if a turn has no rating.

    ``gold``, from the dataset processor, has ``question`` (the turns), ``references`` (none or one per turn), ``group``
    and ``judge``, the settings as JSON.
    """
    ((score, _),) = _verdicts([(answers, gold)])
    return score


def judge_all(pairs: Pairs) -> list[float | None]:
    """``judge`` of all queries of a test case, concurrently. Logs a warning about missing ratings.

    Raises UserError if all are missing.
    """
    verdicts = _verdicts(pairs)
    judged = [score for score, problems in verdicts if problems or score is not None]
    problems = [problem for _, problems in verdicts for problem in problems]
    if problems:
        model = next(gold["judge"]["model"] for _, gold in pairs if _has_judge(gold))
        without = judged.count(None)
        reason = f"{len(problems)} judgments of the judge {model} are missing; the first: {problems[0]}"
        reason += " (the next run repeats only these)"
        if without == len(judged):
            raise UserError(f"no answer has a rating: {reason}")
        log.warning("%d of %d queries have no score: %s", without, len(judged), reason)
    return [score for score, _ in verdicts]


def stored_ratings(pairs: Pairs) -> list[list[float | None]]:
    """The journal's ratings of each query's turns, without requests. Empty for a query without a judge."""
    panel, asked = _Panel.of(pairs)
    if panel is None:
        return [[] for _ in pairs]
    judgments = panel.judgments(itertools.chain.from_iterable(asked), ask=False)
    given = [[str(judgments.get(digest(messages), "")) for messages in turns] for turns in asked]
    return [[rating(judgment, panel.official) for judgment in turns] for turns in given]


class _Panel:
    """A judge with its prompts and, in a job, the journal."""

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings
        self._prompts = settings.prompt_set()
        self.official = self._prompts.official
        self._sampling = Sampling(max_tokens=settings.max_tokens)
        self._llm = settings.llm()
        self._journal = Journal.of_job() if os.environ.get("RESULT_SAVED_URL") else None
        asked = {
            "sampling": {"max_tokens": settings.max_tokens, "temperature": 0.0},
            "judge_prompts": self._prompts.digest,
        }
        self._configuration = Configuration(settings.model, {**self._llm.identity(FileDigests(None)), **asked})

    @classmethod
    def of(cls, pairs: Pairs) -> tuple[_Panel | None, list[list[list[Message]]]]:
        """The judge of these queries, and the chats to judge each turn: none for a query without judge or answers."""
        ready = [_has_judge(gold) and len(answers) == len(gold["question"]) for answers, gold in pairs]
        settings = {JudgeSettings(**gold["judge"]) for (_, gold), yes in zip(pairs, ready, strict=True) if yes}
        if len(settings) > 1:
            raise UserError("the queries of a test case name different judges")
        if not settings:
            return None, [[] for _ in pairs]
        panel = cls(settings.pop())
        return panel, [
            conversations(panel._prompts, gold["question"], answers, gold["references"], gold["group"]) if yes else []
            for (answers, gold), yes in zip(pairs, ready, strict=True)
        ]

    def judgments(self, asked: Iterable[list[Message]], *, ask: bool = True) -> dict[str, str | AnswerError]:
        """Text of each judgment, or its error, by the digest of its chat.

        Judgments in the journal are used; others are requested if ``ask``. One of an earlier run without a rating is
        requested again.
        """
        found: dict[str, str | AnswerError] = {}
        missing: dict[str, list[Message]] = {}
        for messages in asked:
            known = self._journal.get(self._configuration.key(messages)) if self._journal is not None else None
            if known is not None:
                found[digest(messages)] = known.completion.text
            if known is None or (known.replayed and rating(known.completion.text, self.official) is None):
                missing[digest(messages)] = messages
        if not missing or not ask:
            return found
        try:
            asked_for = self._ask_all(missing)
        except UserError as error:
            if missing.keys() - found.keys():
                raise
            log.warning("%d judgments without a rating could not be repeated: %s", len(missing), _as_judge(error))
            return found
        finally:
            self._llm.close()
            if self._journal is not None:
                self._journal.release()
        return found | {key: new for key, new in asked_for.items() if isinstance(new, str) or key not in found}

    def _ask_all(self, missing: Mapping[str, list[Message]]) -> dict[str, str | AnswerError]:
        if self._journal is not None:
            if why := self._journal.explain_miss(self._configuration, next(iter(missing.values())), SIDE):
                log.warning("judge: %s", why)
            self._journal.ensure_writable()
        self._llm.load()
        found: dict[str, str | AnswerError] = {}
        pool = ThreadPoolExecutor(min(self._settings.concurrency, len(missing)), thread_name_prefix=SIDE)
        try:
            futures = {pool.submit(self._ask, messages): key for key, messages in missing.items()}
            for future in as_completed(futures):
                try:
                    found[futures[future]] = future.result()
                except AnswerError as error:
                    found[futures[future]] = error
                    none = all(isinstance(judgment, AnswerError) for judgment in found.values())
                    if none and len(found) == min(MAX_FIRST_FAILURES, len(missing)):
                        raise
        except (AnswerError, KeyboardInterrupt):
            # Do not wait for an unavailable judge, or after Ctrl-C.
            pool.shutdown(wait=False, cancel_futures=True)
            self._llm.close()
            raise
        finally:
            # Wait for requests in flight: they are paid for, and the journal stores them.
            pool.shutdown(cancel_futures=True)
        return found

    def _ask(self, messages: list[Message]) -> str:
        try:
            completion = self._llm.generate(messages, self._sampling)
        except AnswerError as error:
            if self._journal is not None:
                self._journal.put_failure(self._configuration.key(messages), error, side=SIDE)
            raise
        if self._journal is not None:
            hardware = self._llm.hardware()
            judged = {"prompts": self._prompts.name, "rule": rule(completion.text, self.official)}
            self._journal.put(self._configuration, messages, completion, side=SIDE, hardware=hardware, judged=judged)
        if completion.truncated:
            warn_once("the judge's server cut a prompt that did not fit: it has not read the whole of each answer")
        return completion.text


def _verdicts(pairs: Pairs) -> list[Verdict]:
    try:
        panel, asked = _Panel.of(pairs)
        judgments = panel.judgments(itertools.chain.from_iterable(asked)) if panel else {}
    except AnswerError as error:
        raise AnswerError(str(_as_judge(error)), error.failures) from error
    except UserError as error:
        raise _as_judge(error) from error
    official = bool(panel and panel.official)
    return [_verdict([judgments[digest(messages)] for messages in turns], official) for turns in asked]


def _has_judge(gold: Any) -> bool:
    return isinstance(gold, Mapping) and gold.get("judge") is not None


def _verdict(judgments: Sequence[str | AnswerError], official: bool) -> Verdict:
    ratings: list[float] = []
    problems: list[str] = []
    for judgment in judgments:
        if isinstance(judgment, AnswerError):
            problems.append(_renamed(str(judgment)))
        elif (found := rating(judgment, official)) is not None:
            ratings.append(found)
        else:
            text = judgment if len(judgment) <= MAX_SHOWN else f"...{judgment[-MAX_SHOWN:]}"
            problems.append(f"expected a rating from 1 to 10 such as [[5]], got {text!r}")
    return sum(ratings) / len(ratings) if ratings and not problems else None, problems


def _as_judge(error: UserError) -> UserError:
    """The API's error with the names of the judge's settings."""
    names = {f"api_{name}": f"judge_{name}" for name in _OWN_OPTIONS}
    return UserError(f"the judge: {_renamed(str(error))}", key=names.get(str(error.key), error.key))


def _renamed(message: str) -> str:
    for name in _OWN_OPTIONS:
        message = message.replace(f"api_{name}", f"judge_{name}")
    return message
