"""``python -m bench.switching``: what it costs to switch speculation off and on, step by step.

Several requests are under way at once, greedy, and take turns with new ones until so many switches are done; when
speculation is off or on is drawn beforehand, for all of them together. Of every step its size, the tokens that the
target computes, and its seconds: the least of all repeats, which compute the very same, so that what else the machine
does counts little. A step that reads a pause or a prompt into the drafter is of the size of those that do not.
Prints a table and writes ``switching.json``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.command import command, parsed
from bench.environment import environment
from bench.opened import Opened
from bench.options import eos_of, load, requests_of, shared, with_defaults
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.lengths.uniform import Uniform
from ianvs_specdec.records.identity import write_atomically

if TYPE_CHECKING:
    from bench.prompts import Request
    from ianvs_specdec.engine import Finished, Load

LONGEST_ON, LONGEST_OFF = 4, 8
"""Steps between two switches, at most."""
REPEATS = 5
"""The same step is seldom slowed down by something else in all of them, unless the machine is busy throughout."""
LEAST = 20
"""Steps of a size, for a median to be told from."""


class Forced(Uniform):
    """Off and on in turn, for all requests at once, ``times`` switches and then off."""

    def __init__(self, times: int, tokens: int) -> None:
        rng = random.Random(0)
        runs = [(on, rng.randint(1, LONGEST_ON if on else LONGEST_OFF)) for on in itertools.islice(_turns(), times + 1)]
        self._budgets = [tokens * on for on, steps in runs for _ in range(steps)]
        self.steps: list[tuple[Finished, bool]] = []
        self._on = False

    @property
    def over(self) -> bool:
        return not self._budgets

    def budget(self, load: Load) -> int:
        tokens = self._budgets.pop(0) if self._budgets else 0
        self._on = tokens > 0
        return tokens

    def learn(self, finished: Finished) -> None:
        if finished.shares:
            self.steps.append((finished, self._on))


def _turns() -> itertools.cycle[bool]:
    return itertools.cycle((False, True))


@dataclass
class Timed:
    """A step: tokens that the target computed, tokens that were read into drafters before they drafted, seconds."""

    rows: int
    on: bool
    resumed: bool
    behind: int
    seconds: float


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    return command("bench.switching", lambda: _run(options), options.out, table, write)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.switching", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    shared(parser)
    add = parser.add_argument
    add("--switches", type=int, default=1000, metavar="N", help="how often speculation goes off or on (1000)")
    add("--tokens", type=int, default=4, metavar="K", help="draft tokens while it is on (4)")
    add("--at-once", type=int, default=8, metavar="N", help="requests under way (8)")
    add("--limit", type=int, default=32, metavar="N", help="prompts of each file, spread evenly over it (32)")
    add("--draft", type=Path, metavar="DIR", help="smaller model with the same tokenizer")
    add("--out", type=Path, default=Path("runs") / "bench", metavar="DIR", help="(runs/bench)")
    parser.set_defaults(medusa=None, datastore=None, methods=None, set=[], repeats=REPEATS)
    return with_defaults(parsed(parser, argv, "switches", "tokens", "at_once", "limit", "max_new_tokens", "repeats"))


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from ianvs_specdec.targets.registry import target_of

    model, tokenizer = load(options)
    requests = requests_of(options, model, tokenizer)
    target, eos_ids = target_of(model, engine=options.engine), eos_of(model)
    methods = [("eagle", {"head": head, "tree": "chain"}) for head in options.eagle]
    methods += [("medusa", {"head": options.medusa, "tree": "chain"})] if options.medusa else []
    methods += [("draft_model", {"draft": options.draft})] if options.draft else []
    rows = []
    for name, settings in methods:
        opened = Opened.of(target, name, settings, eos_ids, options.max_new_tokens)
        repeats = [_decoded(options, opened, requests) for _ in range(options.repeats)]
        steps = [_least(same) for same in zip(*repeats, strict=True)]
        rows.append({"name": f"{name} {Path(next(iter(settings.values()))).name}", **_told(steps)})
    return {
        "model": str(options.model),
        "settings": {key: getattr(options, key) for key in ("switches", "tokens", "at_once", "repeats", "dtype")},
        "target": target.kind,
        "environment": environment(),
        "rows": rows,
    }


def _decoded(options: argparse.Namespace, opened: Opened, requests: Sequence[Request]) -> list[Timed]:
    from ianvs_specdec.engine.loop import Engine

    length = Forced(options.switches, options.tokens)
    engine, coming = Engine(opened.target, length, at_once=options.at_once), itertools.cycle(requests)
    while not length.over:
        while engine.occupancy.sequences + engine.occupancy.waiting < options.at_once:
            engine.add(opened.request(next(coming).ids))
        engine.step()
    engine.close()
    before, steps = False, []
    for finished, on in length.steps:
        seconds = finished.draft_seconds + finished.verify_seconds
        behind = sum(share.unread_tokens for share in finished.shares) if on else 0
        steps.append(Timed(finished.rows + finished.prompt_rows, on, on and not before, behind, seconds))
        before = on
    return steps


def _least(same: Sequence[Timed]) -> Timed:
    assert len({(step.rows, step.on, step.behind) for step in same}) == 1, "repeats differ"
    return min(same, key=lambda step: step.seconds)


def _told(steps: Sequence[Timed]) -> dict[str, Any]:
    """Steps of a size: as many rows up to a power of two, and with drafts or without."""
    sizes: dict[tuple[bool, int], list[Timed]] = defaultdict(list)
    for step in steps:
        sizes[step.on, step.rows.bit_length()].append(step)
    ratios = [
        (step.seconds / median(other.seconds for other in same), step)
        for same in sizes.values()
        if len(same) >= LEAST
        for step in same
    ]
    if not any(step.resumed for _, step in ratios):
        raise UserError(f"there are no {LEAST} steps of a size that drafts: ask for more --switches")
    worst, longest = max(ratios, key=lambda pair: pair[0])
    resumed = [ratio for ratio, step in ratios if step.resumed]
    return {
        "steps": len(steps),
        "judged": len(ratios),
        "longest": worst,
        "longest_behind": longest.behind,
        "above_two": sum(ratio > 2 for ratio, _ in ratios),
        "resumed": median(resumed),
        "resumed_longest": max(resumed),
        "most_behind": max(step.behind for step in steps),
    }


def table(report: dict[str, Any]) -> str:
    settings, place = report["settings"], report["environment"]
    width = max(len(row["name"]) for row in report["rows"]) + 2
    lines = [
        f"{report['model']}: {settings['switches']} switches, {settings['at_once']} requests at once, "
        f"{settings['tokens']} draft tokens, {settings['dtype']}, least of {settings['repeats']} repeats",
        f"{place['processor']}, {place['threads']} threads, computed by {report['target']}",
        "",
        f"{'method':{width}}{'steps':>7}{'longest':>9}{'above 2':>9}{'resumed':>9}{'longest':>9}{'most behind':>13}",
    ]
    lines += [
        f"{row['name']:{width}}{row['steps']:7}{row['longest']:9.2f}{row['above_two']:9}{row['resumed']:9.2f}"
        f"{row['resumed_longest']:9.2f}{row['most_behind']:13}"
        for row in report["rows"]
    ]
    return "\n".join([*lines, "", "in medians of steps of the same size; resumed: the first step after a pause"])


def write(folder: Path, report: dict[str, Any]) -> list[Path]:
    """``switching.json``; it appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "switching.json", json.dumps(report, indent=1, default=str) + "\n")
    return [folder / "switching.json"]


if __name__ == "__main__":
    sys.exit(main())
