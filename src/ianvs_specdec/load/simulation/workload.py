"""Requests of a simulation and their acceptance, from recorded answers or given probabilities."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Step
from ianvs_specdec.load.arrivals import Arrival
from ianvs_specdec.load.simulation.requests import UserRequest
from ianvs_specdec.records.journal import read_answers

MAX_DEPTH = 256
"""Of a draft; deeper tokens count as this depth."""
PRIOR = 2.0
"""Number of trials as which the rate of all answers of a task counts in the rate of one answer."""
MAX_LINE = 64 << 20
"""Bytes."""


@dataclass(frozen=True)
class RecordedAnswer:
    """``survival``: acceptance rate per depth, given that the tokens before were accepted; ``found``: share of steps
    with a draft; ``seen``: recorded verdicts by position in the output."""

    task: str
    prompt: int
    output: int
    survival: tuple[float, ...]
    found: float = 1.0
    seen: Mapping[int, bool] = field(default_factory=dict)


@dataclass
class _Counts:
    """Drafted and accepted tokens per depth."""

    tried: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def add(self, accepted: int, failed: bool) -> None:
        """Count a draft with ``accepted`` tokens, and a rejected one if it ``failed``."""
        levels = min(accepted + failed, MAX_DEPTH)
        while len(self.tried) < levels:
            self.tried.append(0.0)
            self.accepted.append(0.0)
        for level in range(levels):
            self.tried[level] += 1
            self.accepted[level] += level < accepted

    def rates(self, prior: Sequence[float], levels: int) -> tuple[float, ...]:
        """Acceptance rate per depth. Without trials it is that of the depth before."""
        rates: list[float] = []
        for level in range(levels):
            tried, accepted = (self.tried[level], self.accepted[level]) if level < len(self.tried) else (0.0, 0.0)
            before = prior[level] if level < len(prior) else (rates[-1] if rates else 0.5)
            rates.append((accepted + PRIOR * before) / (tried + PRIOR))
        return tuple(rates)


class Workload:
    """Draws requests from ``recorded`` answers. Recorded verdicts on tokens are repeated, others are drawn.

    ``prompt_tokens`` replaces the recorded length, ``max_tokens`` limits it."""

    def __init__(
        self, recorded: Sequence[RecordedAnswer], prompt_tokens: int | None = None, max_tokens: int | None = None
    ) -> None:
        self._recorded, self._prompt = recorded, prompt_tokens
        self._most = max_tokens or max(one.output for one in recorded)
        self.tasks = sorted({one.task for one in recorded})

    def draw(self, rng: Random, arrival: Arrival | None = None) -> UserRequest:
        """Draw a request, with the lengths of ``arrival`` if it is from a trace."""
        number = rng.random
        one = self._recorded[int(number() * len(self._recorded))]
        prompt, output = (one.prompt, one.output) if arrival is None else (arrival.prompt_tokens, arrival.output_tokens)
        output = min(output, self._most)
        draws = [number() for _ in range(output)]
        for position, accepted in one.seen.items():
            if position < output:
                draws[position] = 0.0 if accepted else 1.0
        found = [number() < one.found for _ in range(output)] if one.found < 1.0 else None
        return UserRequest(one.task, self._prompt or prompt, output, self._most, one.survival, draws, found)


def stated(acceptance: Mapping[str, float], prompt_tokens: int, max_tokens: int) -> list[RecordedAnswer]:
    """One answer per task, with this acceptance probability of all draft tokens."""
    return [
        RecordedAnswer(task, prompt_tokens, max_tokens, (rate,) * MAX_DEPTH)
        for task, rate in sorted(acceptance.items())
    ]


def read(path: Path) -> list[RecordedAnswer]:
    """The answers with drafts in a journal or in output of ``specdec decode``. Raises ``UserError``."""
    found = [answer for answer in _answers(path) if any(step.drafted for step in answer[3])]
    if not found:
        raise UserError(
            f"--traces {path}: no answer has steps with drafts; record some with a drafting method, "
            "by `specdec decode --out` or by a job, in its journal.sqlite"
        )
    total, tasks, own = _Counts(), dict[str, _Counts](), list[_Counts]()
    deepest = max(step.accepted for answer in found for step in answer[3])
    for task, _, _, steps in found:
        own.append(_Counts())
        # Not the last step, whose draft is cut off by the end of the output.
        for step in steps[:-1]:
            if step.drafted:
                # A tree is less deep than it has tokens.
                failed = step.accepted < min(step.drafted, deepest)
                for counts in (total, tasks.setdefault(task, _Counts()), own[-1]):
                    counts.add(step.accepted, failed)
    common = total.rates((), MAX_DEPTH)
    of_task = {task: counts.rates(common, MAX_DEPTH) for task, counts in tasks.items()}
    return [
        RecordedAnswer(
            task,
            prompt,
            output,
            counts.rates(of_task.get(task, common), MAX_DEPTH),
            _found(steps),
            _seen(output, steps, deepest),
        )
        for (task, prompt, output, steps), counts in zip(found, own, strict=True)
    ]


def _seen(output: int, steps: Sequence[Step], deepest: int) -> dict[int, bool]:
    """``RecordedAnswer.seen``. The first token may be from the prefill, before the first step."""
    position, found = output - sum(step.emitted for step in steps), dict[int, bool]()
    for step in steps:
        found |= dict.fromkeys(range(position, position + step.accepted), True)
        # Not if the output ended within the draft.
        if step.accepted < min(step.drafted, step.emitted, deepest):
            found[position + step.accepted] = False
        position += step.emitted
    return found


def _found(steps: Sequence[Step]) -> float:
    """Share of steps with a draft, without the last step, which may have no room for one."""
    steps = steps[:-1] or steps
    return sum(step.drafted > 0 for step in steps) / len(steps)


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
                if len(line) > MAX_LINE:
                    raise UserError(f"--traces {path}:{number}: longer than {MAX_LINE >> 20} MiB")
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
        reason = "expected a journal.sqlite, or lines of `specdec decode` with prompt, output and steps"
        raise UserError(f"{where}: {reason}") from error
    return task, prompt, output, steps


_STEP = ("drafted", "accepted", "emitted", "verified")


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"not a count: {value!r}")
    return value
