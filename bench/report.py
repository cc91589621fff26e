"""The result of ``bench`` as a table to read, as JSON, as CSV and as a plot."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from bench.command import interval, to_csv, to_json, write_files

MEMORY = "memory: weights and caches held; process: the most that a process of its own had in memory, code included"


def table(report: dict[str, Any]) -> str:
    settings, prompts, environment = report["settings"], report["prompts"], report["environment"]
    failed: dict[str, str] = report["failed"]
    width = max(map(len, (*(row["name"] for row in report["methods"]), *failed))) + 2
    lines = [
        f"{report['model']}: {prompts['count']} prompts ({prompts['tokens']} tokens), "
        f"up to {settings['max_new_tokens']} new tokens, {settings['dtype']}, greedy, one stream, "
        f"{settings['repeats']} repeats",
        f"{environment['processor']}, {environment['threads']} threads, torch {environment['torch']}, "
        f"transformers {environment['transformers']}",
        "",
        f"{'method':{width}}{'token/s':>9}{'95 %':>18}{'tau':>7}{'same output':>13}{'near-tie':>10}{'speedup':>9}"
        f"{'95 %':>15}{'TTFT ms':>10}{'memory MB':>11}{'process MB':>12}  computed by",
        *(_line(row, width) for row in report["methods"]),
        *(f"{name:{width}}failed: {reason}" for name, reason in failed.items()),
        "",
        MEMORY,
    ]
    for ratio in report["ratios"]:
        lines.append(f"{ratio['method']} / {ratio['baseline']}: {ratio['value']:.2f} {interval(ratio)}")
    if len(report["tasks"]) > 1:
        lines += ["", *_tasks(report["tasks"], width)]
    return "\n".join(lines)


def _line(row: dict[str, Any], width: int) -> str:
    rate, speedup = row["tokens_per_second"], row["speedup"]
    span = f"{rate['low']:.1f} - {rate['high']:.1f}"
    line = f"{row['name']:{width}}{rate['value']:9.1f}{span:>18}{row['tau']:7.2f}"
    line += f"{row['same_output']:>13.0%}{row['near_tie']:>10.0%}{speedup['value']:9.2f}{interval(speedup):>15}"
    line += f"{_scaled(row['ttft'], 1e3):>10}{_scaled(row['memory'], 1e-6):>11}{_scaled(row['resident'], 1e-6):>12}"
    return f"{line}  {row['target'] or ''}".rstrip()


def _scaled(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:.1f}"


def _tasks(tasks: dict[str, dict[str, float]], width: int) -> list[str]:
    """Speed-ups by kind of task, methods in rows."""
    lines = ["speedup by task".ljust(width) + "".join(f"{name[:11]:>12}" for name in tasks)]
    for method in next(iter(tasks.values())):
        lines.append(f"{method:{width}}" + "".join(f"{speedups[method]:12.2f}" for speedups in tasks.values()))
    return lines


def write(folder: Path, report: dict[str, Any]) -> list[Path]:
    """Write ``bench.json``, ``bench.csv`` and, with matplotlib, ``bench.svg``."""
    contents = {"bench.json": to_json(report), "bench.csv": to_csv(report["methods"])}
    if importlib.util.find_spec("matplotlib"):
        contents["bench.svg"] = _plot(report)
    return write_files(folder, contents)


def _plot(report: dict[str, Any]) -> str:
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
