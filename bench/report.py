"""The result of a measurement as a table to read, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any


def table(report: dict[str, Any]) -> str:
    settings, prompts, environment = report["settings"], report["prompts"], report["environment"]
    lines = [
        f"{report['model']}: {prompts['count']} prompts ({prompts['tokens']} tokens), "
        f"up to {settings['max_new_tokens']} new tokens, {settings['dtype']}, greedy, one stream, "
        f"{settings['repeats']} repeats",
        f"{environment['processor']}, {environment['threads']} threads, torch {environment['torch']}, "
        f"transformers {environment['transformers']}",
        "",
        f"{'method':28}{'token/s':>9}{'95 %':>18}{'tau':>7}{'same output':>13}{'near-tie':>10}",
    ]
    for row in report["methods"]:
        rate = row["tokens_per_second"]
        interval = f"{rate['low']:.1f} - {rate['high']:.1f}"
        shares = f"{row['same_output']:>13.0%}{row['near_tie']:>10.0%}"
        lines.append(f"{row['name']:28}{rate['value']:9.1f}{interval:>18}{row['tau']:7.2f}{shares}")
    lines.append("")
    for ratio in report["ratios"]:
        interval = f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"
        lines.append(f"{ratio['method']} / {ratio['baseline']}: {ratio['value']:.2f} {interval}")
    return "\n".join(lines)


def write(folder: Path, report: dict[str, Any]) -> list[Path]:
    """Write ``bench.json`` and ``bench.csv`` into ``folder``; each appears whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = {"bench.json": json.dumps(report, indent=1) + "\n", "bench.csv": _csv(report["methods"])}
    for name, content in contents.items():
        temporary = folder / f"{name}.tmp"
        temporary.write_text(content, encoding="utf-8", newline="")
        os.replace(temporary, folder / name)
    return [folder / name for name in contents]


def _csv(methods: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["method", "tokens", "tokens_per_second", "low", "high", "tau", "same_output", "near_tie"])
    for row in methods:
        rate = row["tokens_per_second"]
        figures = [rate["value"], rate["low"], rate["high"], row["tau"], row["same_output"], row["near_tie"]]
        writer.writerow([row["name"], row["tokens"], *figures])
    return text.getvalue()
