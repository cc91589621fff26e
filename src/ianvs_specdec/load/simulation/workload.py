"""Requests of a simulation and their acceptance, as recorded or stated."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Step
from ianvs_specdec.load.patterns import Arrival
from ianvs_specdec.load.simulation.requests import UserRequest
from ianvs_specdec.records.journal import read_answers

MOST_LEVELS = 256
"""Maximum depth of a draft; deeper ones count as this depth."""
PRIOR = 2.0
"""Trials that all answers of a task count for against those of one answer, which alone are few."""
LARGEST_LINE = 64 << 20
"""Bytes: a longer line is no answer."""


@dataclass(frozen=True)
class RecordedAnswer:
    """One answer. ``survival``: how often a draft's token of each level was right if those before it were; ``found``:
    share of the steps with a draft; ``seen``: whether a draft was right at a place of the output."""

    task: str
    prompt: int
    output: int
    survival: tuple[float, ...]
    found: float = 1.0
    seen: Mapping[int, bool] = field(default_factory=dict)


@dataclass
class _Counts:
    tried: list[float] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def add(self, right: int, failed: bool) -> None:
        levels = min(right + failed, MOST_LEVELS)
        while len(self.tried) < levels:
            self.tried.append(0.0)
            self.right.append(0.0)
        for level in range(levels):
            self.tried[level] += 1
            self.right[level] += level < right

    def rates(self, prior: Sequence[float], levels: int) -> tuple[float, ...]:
        """Per level; one that was never tried is as good as the one before it."""
        rates: list[float] = []
        for level in range(levels):
            tried, right = (self.tried[level], self.right[level]) if level < len(self.tried) else (0.0, 0.0)
            before = prior[level] if level < len(prior) else (rates[-1] if rates else 0.5)
            rates.append((right + PRIOR * before) / (tried + PRIOR))
        return tuple(rates)


class Workload:
    """Draws one of the ``recorded`` answers. A token that a draft had right there is right again, wherever a draft
    begins, and one that was wrong is wrong; others are drawn. ``prompt_tokens`` replaces the recorded length,
    ``max_tokens`` limits it."""

    def __init__(
        self, recorded: Sequence[RecordedAnswer], prompt_tokens: int | None = None, max_tokens: int | None = None
    ) -> None:
        self._recorded, self._prompt = recorded, prompt_tokens
        self._most = max_tokens or max(one.output for one in recorded)
        self.tasks = sorted({one.task for one in recorded})

    def draw(self, chance: Random, coming: Arrival | None = None) -> UserRequest:
        """``coming``: the request of a trace that it is, whose lengths count."""
        number = chance.random
        one = self._recorded[int(number() * len(self._recorded))]
        prompt, output = (one.prompt, one.output) if coming is None else (coming.prompt_tokens, coming.output_tokens)
        output = min(output, self._most)
        draws = [number() for _ in range(output)]
        for place, right in one.seen.items():
            if place < output:
                draws[place] = 0.0 if right else 1.0
        found = [number() < one.found for _ in range(output)] if one.found < 1.0 else None
        return UserRequest(one.task, self._prompt or prompt, output, self._most, one.survival, draws, found)


def stated(acceptance: Mapping[str, float], prompt_tokens: int, max_tokens: int) -> list[RecordedAnswer]:
    """One kind of request for each task, whose drafted tokens are all right with that probability."""
    return [
        RecordedAnswer(task, prompt_tokens, max_tokens, (rate,) * MOST_LEVELS)
        for task, rate in sorted(acceptance.items())
    ]


def read(path: Path) -> list[RecordedAnswer]:
    """The answers of a journal, or of what ``specdec decode`` wrote, that have drafts. Raises ``UserError``."""
    found = [answer for answer in _answers(path) if any(step.drafted for step in answer[3])]
    if not found:
        raise UserError(
            f"--traces {path}: no answer in it has steps with drafts; record some with a method that drafts, "
            "with `specdec decode --out` or by a job, whose journal.sqlite holds them"
        )
    everything, tasks, own = _Counts(), dict[str, _Counts](), list[_Counts]()
    deepest = max(step.accepted for answer in found for step in answer[3])
    for task, _, _, steps in found:
        own.append(_Counts())
        # What the last step drafted is cut off by the end of the output.
        for step in steps[:-1]:
            if step.drafted:
                # A draft may have branches; then it is not as deep as it has tokens.
                failed = step.accepted < min(step.drafted, deepest)
                for counts in (everything, tasks.setdefault(task, _Counts()), own[-1]):
                    counts.add(step.accepted, failed)
    common = everything.rates((), MOST_LEVELS)
    of_task = {task: counts.rates(common, MOST_LEVELS) for task, counts in tasks.items()}
    return [
        RecordedAnswer(
            task,
            prompt,
            output,
            counts.rates(of_task.get(task, common), MOST_LEVELS),
            _found(steps),
            _seen(output, steps, deepest),
        )
        for (task, prompt, output, steps), counts in zip(found, own, strict=True)
    ]


def _seen(output: int, steps: Sequence[Step], deepest: int) -> dict[int, bool]:
    """``Recorded.seen`` of an answer. The first token may have come of the prompt, before the first step."""
    place, found = output - sum(step.emitted for step in steps), dict[int, bool]()
    for step in steps:
        found |= dict.fromkeys(range(place, place + step.accepted), True)
        # Where the output ends within the draft, nothing is known of what came behind.
        if step.accepted < min(step.drafted, step.emitted, deepest):
            found[place + step.accepted] = False
        place += step.emitted
    return found


def _found(steps: Sequence[Step]) -> float:
    """In what share of the steps there was a draft; the last one may have had no room for any."""
    asked = steps[:-1] or steps
    return sum(step.drafted > 0 for step in asked) / len(asked)


def _answers(path: Path) -> Iterator[tuple[str, int, int, Sequence[Step]]]:
    """Task, tokens of prompt and output, and steps of each answer in a file."""
    if path.suffix == ".sqlite":
        for answer in read_answers(path):
            if answer.completion_tokens > 0:
                yield "", answer.prompt_tokens or 1, answer.completion_tokens, answer.trace.steps
        return
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if len(line) > LARGEST_LINE:
                    most = f"{LARGEST_LINE >> 20} MiB"
                    raise UserError(f"--traces {path}:{number}: longer than {most}, which no answer is")
                yield _decoded(line, f"--traces {path}:{number}")
    except OSError as error:
        raise UserError(f"--traces {path}: cannot be read: {error.strerror or error}") from error


def _decoded(line: bytes, where: str) -> tuple[str, int, int, Sequence[Step]]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
        prompt, output = len(row["prompt"]), len(row["output"]) - len(row["prompt"])
        steps = [Step(*(_count(step[name]) for name in _STEP)) for step in row["steps"]]
        task: Any = row.get("task", "")
        if not isinstance(task, str) or prompt < 1 or output < 1:
            raise ValueError("no output")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = "expected a journal.sqlite, or lines that `specdec decode` writes, with prompt, output and steps"
        raise UserError(f"{where}: {reason}") from error
    return task, prompt, output, steps


_STEP = ("drafted", "accepted", "emitted", "verified")


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"no count: {value!r}")
    return value
