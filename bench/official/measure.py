"""All rows on all prompts, interleaved over the drivers, only one of which ever works."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from bench.command import interleaved
from bench.contestants import Run
from bench.official.rows import Row


class Asked(Protocol):
    """A driver, as far as it is asked."""

    def ask(self, request: dict[str, Any]) -> dict[str, Any]: ...


@dataclass
class Measured(Run):
    """A run with the tokens that each verification step emitted, and the count of tokens cut off its end."""

    emitted: tuple[int, ...] = ()
    overshoot: int = 0


def measure(
    rows: Sequence[Row],
    drivers: Mapping[str, Asked],
    prompts: Sequence[list[int]],
    repeats: int,
    max_new_tokens: int,
    eos_ids: Collection[int],
) -> dict[str, list[list[Measured]]]:
    """Every row on every prompt, ``repeats`` times, ``interleaved``, after one uncounted request to each.

    Returns per row, per prompt, the repeats.
    """

    def ask(row: Row, prompt: list[int]) -> Measured:
        request = {"row": row.settings, "prompt": prompt, "max_new_tokens": max_new_tokens, "eos_ids": list(eos_ids)}
        return trimmed(drivers[row.driver].ask(request), max_new_tokens, eos_ids)

    runs: dict[str, list[list[Measured]]] = {row.name: [[] for _ in prompts] for row in rows}
    for row in rows:
        ask(row, prompts[0])
    for i, row in interleaved(rows, len(prompts), repeats):
        runs[row.name][i].append(ask(row, prompts[i]))
    return runs


def trimmed(answer: Mapping[str, Any], max_new_tokens: int, eos_ids: Collection[int]) -> Measured:
    """The run that ``answer`` tells of, without what follows the end of the output: the packages go on to the end of
    their step. Of the steps those are kept that decided what is left; the time of all counts, since it was spent."""
    output = answer["output"]
    ends = (i + 1 for i, token in enumerate(output) if token in eos_ids)
    kept = output[: min(max_new_tokens, next(ends, max_new_tokens))]
    prefills = answer["prefills"]
    left, emitted = len(kept) - prefills, []
    for count in answer["emitted"]:
        if left > 0:
            emitted.append(min(count, left))
            left -= count
    return Measured(
        token_ids=kept,
        seconds=answer["seconds"],
        forwards=len(emitted) + prefills,
        near_ties=tuple(answer.get("near_ties", ())),
        prefills=prefills,
        emitted=tuple(emitted),
        overshoot=len(output) - len(kept),
    )
