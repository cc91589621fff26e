"""``python -m bench`` (``make bench``): token/s and acceptance, ours beside transformers.

Methods in rows, all on one model and one set of prompts, greedy, one stream, the runs interleaved. Prints a table and
writes ``bench.json``, ``bench.csv`` and (with matplotlib) ``bench.svg`` into the output folder. With ``--official`` the
published packages eagle-llm 1.2.1 and lade 0.0.2 have rows, too, unpatched (``make bench-official``).
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.command import command, environment
from bench.options import eos_of, load, requests_of, shared, with_defaults
from bench.report import files, table
from ianvs_specdec.benchmarks.files import positive

if TYPE_CHECKING:
    from bench.prompts import Request
    from bench.statistics import Run


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    return command("bench", lambda: _run(options), options.out, table, files())


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    shared(parser)
    add = parser.add_argument
    add("--medusa", type=Path, metavar="DIR", help="Medusa heads of the target")
    add("--dflash", type=Path, metavar="DIR", help="DFlash head of the target")
    add("--draft", type=Path, metavar="DIR", help="smaller model with the same tokenizer")
    add("--datastore", type=Path, metavar="FILE", help="datastore for rest and suffix")
    add("--methods", type=lambda text: text.split(","), metavar="A,B", help="only these of our methods")
    add("--official", type=Path, metavar="DIR", help="folder with the environments venv-eagle and venv-lade")
    add("--limit", type=positive, default=24, metavar="N", help="prompts of each file, spread evenly over it (24)")
    return with_defaults(parser.parse_args(argv))


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from bench.methods import lineup, measure, ratios
    from bench.statistics import speed_ratio, summarise
    from ianvs_specdec.engine.rounding import near_ties

    model, tokenizer = load(options)
    requests = requests_of(options, model, tokenizer)
    failed: dict[str, str] = {}
    with ExitStack() as peers:
        positions = max(len(request.ids) for request in requests) + options.max_new_tokens
        entries = lineup(options, model, eos_of(model), positions, peers)
        runs = measure(model, entries, requests, options.repeats, failed)
        entries = [entry for entry in entries if entry.name in runs]
        memory = {entry.name: {"memory": entry.memory(), "resident": entry.resident()} for entry in entries}
    reference = runs[entries[0].name]
    ties = [near_ties(model, asked.ids, run[0].token_ids) for asked, run in zip(requests, reference, strict=True)]
    return {
        "model": str(options.model),
        "settings": {name: getattr(options, name) for name in ("max_new_tokens", "repeats", "dtype", "device")},
        "environment": environment(),
        "prompts": {
            "files": [str(file) for file in options.prompts],
            "count": len(requests),
            "tokens": sum(len(request.ids) for request in requests),
        },
        "methods": [
            {
                **asdict(summarise(entry.name, runs[entry.name], reference, ties)),
                "speedup": asdict(speed_ratio(runs[entry.name], runs[entry.baseline])),
                **memory[entry.name],
                "target": entry.target,
            }
            for entry in entries
        ],
        "failed": failed,
        "ratios": [
            {"method": method, "baseline": baseline, **asdict(speed_ratio(runs[method], runs[baseline]))}
            for method, baseline in ratios(list(runs))
        ],
        "tasks": {
            task: {
                entry.name: speed_ratio(
                    *(_of_task(runs[row], requests, task) for row in (entry.name, entry.baseline))
                ).value
                for entry in entries
            }
            for task in dict.fromkeys(request.task for request in requests)
        },
        "runs": {name: [[_row(run) for run in repeats] for repeats in per_prompt] for name, per_prompt in runs.items()},
    }


def _row(run: Run) -> dict[str, Any]:
    return {"tokens": len(run.token_ids), "seconds": run.seconds, "ttft": run.ttft, "forwards": run.forwards}


def _of_task(runs: list[list[Run]], requests: list[Request], task: str) -> list[list[Run]]:
    return [repeats for repeats, request in zip(runs, requests, strict=True) if request.task == task]


if __name__ == "__main__":
    sys.exit(main())
