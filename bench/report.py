"""The result of a measurement as a table to read, as JSON, as CSV and as a plot."""

from __future__ import annotations

import importlib.util
import io
import json
from pathlib import Path
from typing import Any

from ianvs_specdec.common.storage.cells import csv_text
from ianvs_specdec.records.identity import write_atomically

MEMORY = "memory: weights and caches held; process: the most that a process of its own had in memory, code included"


def table(report: dict[str, Any]) -> str:
    settings, prompts, environment = report["settings"], report["prompts"], report["environment"]
    lines = [
        f"{report['model']}: {prompts['count']} prompts ({prompts['tokens']} tokens), "
        f"up to {settings['max_new_tokens']} new tokens, {settings['dtype']}, greedy, one stream, "
        f"{settings['repeats']} repeats",
        f"{environment['processor']}, {environment['threads']} threads, torch {environment['torch']}, "
        f"transformers {environment['transformers']}",
        "",
    ]
    failed: dict[str, str] = report.get("failed", {})
    width = max(map(len, (*(row["name"] for row in report["methods"]), *failed))) + 2
    with_memory = "memory" in report["methods"][0]
    heads = f"{'method':{width}}{'token/s':>9}{'95 %':>18}{'tau':>7}{'same output':>13}{'near-tie':>10}"
    heads += f"{'speedup':>9}{'95 %':>15}" if "speedup" in report["methods"][0] else ""
    more = f"{'TTFT ms':>10}{'memory MB':>11}{'process MB':>12}  {'computed by'}"
    lines.append(heads + (more if with_memory else ""))
    for row in report["methods"]:
        rate = row["tokens_per_second"]
        interval = f"{rate['low']:.1f} - {rate['high']:.1f}"
        shares = f"{row['same_output']:>13.0%}{row['near_tie']:>10.0%}"
        line = f"{row['name']:{width}}{rate['value']:9.1f}{interval:>18}{row['tau']:7.2f}{shares}"
        if "speedup" in row:
            line += f"{row['speedup']['value']:9.2f}{_interval(row['speedup']):>15}"
        if with_memory:
            line += f"{_scaled(row['ttft'], 1e3):>10}{_scaled(row['memory'], 1e-6):>11}"
            line += f"{_scaled(row['resident'], 1e-6):>12}  {row['target'] or ''}"
        lines.append(line.rstrip())
    lines += [f"{name:{width}}failed: {reason}" for name, reason in failed.items()]
    lines += ["", *([MEMORY] if with_memory else []), *(_ratio(ratio) for ratio in report["ratios"])]
    if len(report.get("tasks", {})) > 1:
        lines += ["", *_tasks(report["tasks"], width)]
    return "\n".join(lines)


def _scaled(value: float | None, factor: float) -> str:
    return "" if value is None else f"{value * factor:.1f}"


def _interval(estimate: dict[str, float]) -> str:
    return f"[{estimate['low']:.2f}, {estimate['high']:.2f}]"


def _ratio(ratio: dict[str, Any]) -> str:
    return f"{ratio['method']} / {ratio['baseline']}: {ratio['value']:.2f} {_interval(ratio)}"


def _tasks(tasks: dict[str, dict[str, float]], width: int) -> list[str]:
    """Speed-ups by kind of task, methods in rows."""
    columns = [name[:11] for name in tasks]
    lines = ["speedup by task".ljust(width) + "".join(f"{column:>12}" for column in columns)]
    for method in next(iter(tasks.values())):
        lines.append(f"{method:{width}}" + "".join(f"{speedups[method]:12.2f}" for speedups in tasks.values()))
    return lines


def write(folder: Path, report: dict[str, Any]) -> list[Path]:
    """Write ``bench.json``, ``bench.csv`` and, with matplotlib, ``bench.svg`` into ``folder``; each appears whole or
    not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {
        "bench.json": json.dumps(report, indent=1) + "\n",
        "bench.csv": _csv(report["methods"]),
    }
    if "speedup" in report["methods"][0] and importlib.util.find_spec("matplotlib"):
        contents["bench.svg"] = _plot(report)
    for name, content in contents.items():
        write_atomically(folder / name, content)
    return [folder / name for name in contents]


def _csv(methods: list[dict[str, Any]]) -> str:
    rows: list[list[Any]] = []
    with_speedup = "speedup" in methods[0]
    heads = ["method", "tokens", "tokens_per_second", "low", "high", "tau", "same_output", "near_tie"]
    heads += ["speedup", "speedup_low", "speedup_high"] if with_speedup else []
    more = [name for name in ("ttft", "memory", "resident") if name in methods[0]]
    rows.append([*heads, *more, *(["target"] if "target" in methods[0] else [])])
    for row in methods:
        rate = row["tokens_per_second"]
        figures = [rate["value"], rate["low"], rate["high"], row["tau"], row["same_output"], row["near_tie"]]
        figures += [row["speedup"][part] for part in ("value", "low", "high")] if with_speedup else []
        rest = ["" if row[name] is None else f"{row[name]:.6g}" for name in more]
        rest += [row["target"] or ""] if "target" in row else []
        rows.append([row["name"], row["tokens"], *(f"{figure:.4f}" for figure in figures), *rest])
    return csv_text(rows)


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
