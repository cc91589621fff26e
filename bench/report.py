"""The result of ``bench`` as a table to read, as JSON, as CSV and as a plot."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path

from bench.command import Files, Report, columns, interval, ratio_line, to_csv, to_json

MEMORY = "memory: weights and caches held; process: the most that a process of its own had in memory, code included"


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
