"""What is measured: every package with its own settings, our method of the same settings beside it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec import drafters

PACKAGES = {"eagle": "eagle-llm", "lade": "lade"}
"""Environment -> its package. Each has the transformers that the package was written for."""

REFERENCE = "ours autoregressive"


@dataclass(frozen=True)
class Row:
    """``driver`` is "ours" or an environment of ``PACKAGES``; ``settings`` go into its requests. ``beside`` names the
    rows that its speed is put in relation to."""

    name: str
    driver: str
    settings: dict[str, Any]
    beside: tuple[str, ...] = ()


def rows(packages: Collection[str], head: Path | None) -> list[Row]:
    """The rows of the table; the first is the output all others are compared with. ``head`` is needed for "eagle"."""
    chosen = [Row(REFERENCE, "ours", {"method": "autoregressive"})]
    for package in PACKAGES:
        if package not in packages:
            continue
        baseline = f"{package}-env generate"
        chosen.append(Row(baseline, package, {"generate": True}))
        chosen += _eagle(baseline, str(head)) if package == "eagle" else _lookahead(baseline)
    return chosen


def _eagle(baseline: str, head: str) -> list[Row]:
    """eagle-llm 1.2.1 has the static tree of EAGLE-1 and takes any other fixed one; the dynamic tree is ours only."""
    static = {"tree": "static"}
    chain = {"tree": "chain", "total_tokens": 8, "depth": 6, "eagle_topk": 1}
    return [
        Row("eagle-llm static", "eagle", static, (baseline,)),
        _ours("eagle static", {"method": "eagle", "head": head, **static}, "eagle-llm static"),
        Row("eagle-llm chain of 7", "eagle", {"tree": "chain", "depth": 7}, (baseline,)),
        _ours("eagle chain of 7", {"method": "eagle", "head": head, **chain}, "eagle-llm chain of 7"),
        _ours("eagle dynamic", {"method": "eagle", "head": head, "tree": "dynamic"}, "eagle-llm static"),
    ]


def _lookahead(baseline: str) -> list[Row]:
    """Ours of the same settings start as the package does, ours without settings as it does best."""
    chosen = []
    for level, window, guess in ((5, 7, 7), (7, 20, 20)):
        settings = {"level": level, "window": window, "guess": guess}
        numbers = f"({level},{window},{guess})"
        ours = {"method": "lookahead", "start": "official", **settings}
        chosen.append(Row(f"lade {numbers}", "lade", settings, (baseline,)))
        chosen.append(_ours(f"lookahead {numbers}", ours, f"lade {numbers}"))
    return [*chosen, _ours("lookahead", {"method": "lookahead"}, "lade (5,7,7)")]


def _ours(name: str, settings: dict[str, Any], theirs: str) -> Row:
    drafters.check(settings["method"], {key: value for key, value in settings.items() if key != "method"})
    return Row(f"ours {name}", "ours", settings, (REFERENCE, theirs))


def pairs(chosen: Sequence[Row]) -> list[tuple[str, str]]:
    """Rows whose speed ratio is told, and what it is over."""
    names = {row.name for row in chosen}
    return [(row.name, baseline) for row in chosen for baseline in row.beside if baseline in names]
