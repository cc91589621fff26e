"""``python -m bench`` (``make bench``): token/s and acceptance of our methods and transformers.

One row per method, on one model and one set of prompts, greedy, one request at a time, interleaved. Prints a table and
writes ``bench.json``, ``bench.csv`` and (with matplotlib) ``bench.svg`` to the output folder. ``--official`` adds the
unpatched packages eagle-llm 1.2.1 and lade 0.0.2 (``make bench-official``).
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.command import Files, Report, columns, command, environment, interval, ratio_line, to_csv, to_json
from bench.options import eos_of, load, requests_of, shared, with_defaults
from ianvs_specdec.benchmarks.files import positive

if TYPE_CHECKING:
    from bench.options import Request
    from bench.statistics import Run

MEMORY = "memory: weights and caches; process: peak resident memory of a separate process"
HEADS = (
    *("method", "token/s", "95 %", "tau", "same output", "near-tie", "speedup", "95 %"),
    *("TTFT ms", "memory MB", "process MB", "computed by"),
)


def table(report: Report) -> str:
    settings, prompts, environment = report["settings"], report["prompts"], report["environment"]
    lines = [
        f"{report['model']}: {prompts['count']} prompts ({prompts['tokens']} tokens), "
        f"up to {settings['max_new_tokens']} new tokens, {settings['dtype']}, greedy, one stream, "
        f"{settings['repeats']} repeats",
        f"{environment['processor']}, {environment['threads']} threads, torch {environment['torch']}, "
        f"transformers {environment['transformers']}",
        "",
        *columns(HEADS, list(map(_cells, report["methods"]))),
        *(f"{name} failed: {reason}" for name, reason in report["failed"].items()),
        "",
        MEMORY,
        *(ratio_line(f"{ratio['method']} / {ratio['baseline']}", ratio) for ratio in report["ratios"]),
    ]
    tasks: dict[str, dict[str, float]] = report["tasks"]
    if len(tasks) > 1:
        names = [row["name"] for row in report["methods"]]
        rows = [[name, *(f"{speedups[name]:.2f}" for speedups in tasks.values())] for name in names]
        lines += ["", *columns(["speedup by task", *(task[:11] for task in tasks)], rows)]
    return "\n".join(lines)


def _cells(row: Report) -> list[str]:
    rate, speedup = row["tokens_per_second"], row["speedup"]
    return [
        row["name"],
        f"{rate['value']:.1f}",
        interval(rate, 1),
        f"{row['tau']:.2f}",
        f"{row['same_output']:.0%}",
        f"{row['near_tie']:.0%}",
        f"{speedup['value']:.2f}",
        interval(speedup),
        _scaled(row["ttft"], 1e3),
        _scaled(row["memory"], 1e-6),
        _scaled(row["resident"], 1e-6),
        row["target"] or "",
    ]


def _scaled(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:.1f}"


def files() -> Files:
    """``bench.json``, ``bench.csv`` and, with matplotlib, ``bench.svg``."""
    plots: Files = {"bench.svg": _plot} if importlib.util.find_spec("matplotlib") else {}
    return {"bench.json": to_json, "bench.csv": lambda report: to_csv(report["methods"]), **plots}


def _plot(report: Report) -> str:
    """Speed-up over our autoregressive decoding against tau, with intervals, as SVG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots()
    for row in report["methods"]:
        speedup = row["speedup"]
        below, above = speedup["value"] - speedup["low"], speedup["high"] - speedup["value"]
        color = "tab:blue" if row["name"].startswith("ours") else "tab:orange"
        axes.errorbar(row["tau"], speedup["value"], [[max(below, 0)], [max(above, 0)]], fmt="o", color=color, capsize=3)
        label = row["name"].removeprefix("ours ")
        axes.annotate(label, (row["tau"], speedup["value"]), xytext=(6, 4), textcoords="offset points", fontsize=8)
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xlabel("tau: output tokens per verification step")
    axes.set_ylabel("speed-up over autoregressive decoding (95 % interval)")
    axes.set_title(f"{Path(report['model']).name}, {report['settings']['dtype']}", fontsize=10)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


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
    add("--limit", type=positive, default=24, metavar="N", help="prompts per file, spread evenly (24)")
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
    ties = [near_ties(model, request.ids, run[0].token_ids) for request, run in zip(requests, reference, strict=True)]
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
