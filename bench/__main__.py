"""``python -m bench`` (``make bench``): token/s and acceptance, ours beside transformers.

Methods in rows, all on one model and one set of prompts, greedy, one stream, the runs interleaved. Prints a table and
writes ``bench.json``, ``bench.csv`` and (with matplotlib) ``bench.svg`` into the output folder.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.command import command, compared, parsed
from bench.environment import environment
from bench.options import eos_of, load, requests_of, shared, with_defaults


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    return command("bench", lambda: _run(options), options.out)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    shared(parser)
    add = parser.add_argument
    add("--medusa", type=Path, metavar="DIR", help="Medusa heads of the target")
    add("--draft", type=Path, metavar="DIR", help="smaller model with the same tokenizer")
    add("--datastore", type=Path, metavar="FILE", help="datastore for rest and suffix")
    add("--methods", type=lambda text: text.split(","), metavar="A,B", help="only these of our methods")
    add("--set", action="append", default=[], metavar="METHOD.K=V", help="an option of a method; repeatable")
    add("--limit", type=int, default=24, metavar="N", help="prompts of each file, spread evenly over it (24)")
    add("--out", type=Path, default=Path("runs") / "bench", metavar="DIR")
    return with_defaults(parsed(parser, argv, "limit", "max_new_tokens", "repeats"))


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from bench.contestants import measure
    from bench.lineup import lineup, ratios
    from bench.statistics import speed_ratio, summarise
    from ianvs_specdec.engine.rounding import near_ties

    model, tokenizer = load(options)
    eos_ids = eos_of(model)
    requests = requests_of(options, model, tokenizer)
    with ExitStack() as peers:
        positions = max(len(request.ids) for request in requests) + options.max_new_tokens
        entries = lineup(options, model, eos_ids, positions, peers)
        failed: dict[str, str] = {}
        runs = measure(model, entries, requests, options.repeats, failed)
        held = {
            entry.name: {"memory": entry.memory(), "resident": entry.resident(), "target": entry.target}
            for entry in entries
            if entry.name in runs
        }
    names, over = list(runs), {entry.name: entry.baseline for entry in entries}
    outputs = [repeats[0].token_ids for repeats in runs[names[0]]]
    ties = [near_ties(model, request.ids, output) for request, output in zip(requests, outputs, strict=True)]
    tasks = dict.fromkeys(request.task for request in requests)
    return {
        "model": str(options.model),
        "settings": {
            "max_new_tokens": options.max_new_tokens,
            "repeats": options.repeats,
            "dtype": options.dtype,
            "device": options.device,
        },
        "environment": environment(),
        "methods": [
            {
                **asdict(summarise(name, runs[name], runs[names[0]], ties)),
                "speedup": asdict(speed_ratio(runs[name], runs[over[name]])),
                **held[name],
            }
            for name in names
        ],
        "failed": failed,
        **compared(options.prompts, [request.ids for request in requests], ratios(names), runs),
        "tasks": {
            task: {
                name: speed_ratio(*(_of_task(runs[which], requests, task) for which in (name, over[name]))).value
                for name in names
            }
            for task in tasks
        },
        "runs": {name: [[_row(run) for run in repeats] for repeats in per_prompt] for name, per_prompt in runs.items()},
    }


def _row(run: Any) -> dict[str, Any]:
    return {"tokens": len(run.token_ids), "seconds": run.seconds, "ttft": run.ttft, "forwards": run.forwards}


def _of_task(runs: list[Any], requests: list[Any], task: str) -> list[Any]:
    return [repeats for repeats, request in zip(runs, requests, strict=True) if request.task == task]


if __name__ == "__main__":
    sys.exit(main())
