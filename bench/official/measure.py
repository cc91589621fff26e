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
    """A run with the tokens that each verification step emitted, and the output positions that were near-ties."""

    emitted: tuple[int, ...] = ()
    near_ties: tuple[int, ...] = ()


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
        answer = drivers[row.driver].ask(request)
        return Measured(
            token_ids=answer["output"],
            seconds=answer["seconds"],
            forwards=answer["steps"] + answer["prefills"],
            near_ties=tuple(answer.get("near_ties", ())),
            prefills=answer["prefills"],
            emitted=tuple(answer["emitted"]),
        )

    runs: dict[str, list[list[Measured]]] = {row.name: [[] for _ in prompts] for row in rows}
    for row in rows:
        ask(row, prompts[0])
    for i, row in interleaved(rows, len(prompts), repeats):
        runs[row.name][i].append(ask(row, prompts[i]))
    return runs
