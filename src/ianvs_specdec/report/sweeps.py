"""Sweeps of ``specdec load``: throughput, latency and goodput of each policy at each rate."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

FILE = "sweep.json"
FIGURES = {
    "throughput": ("output_tokens_per_second", ""),
    "p50": ("latency", "p50"),
    "p99": ("latency", "p99"),
    "goodput": ("slo_goodput", ""),
}
"""Plotted figure -> its fields in a result."""
MAX_FILE_BYTES = 64 << 20
"""Bytes."""


def sweeps(jobs: Mapping[str, Path], given: Sequence[Path], notes: list[str]) -> list[dict[str, Any]]:
    """The sweeps in the folders of ``jobs`` (name to path) or one level below, and in the folders ``given`` (for all
    jobs: ``job`` None). A point has ``policy``, ``rate`` and, for each of ``FIGURES``, [value, low, high] or None. An
    invalid sweep adds to ``notes``, and raises ``UserError`` in ``given``."""
    found = [_sweep(folder / FILE, None) for folder in given]
    for job, folder in jobs.items():
        for path in sorted([*folder.glob(FILE), *folder.glob(f"*/{FILE}")]):
            try:
                found.append(_sweep(path, job))
            except UserError as error:
                notes.append(str(error))
    return found


def _sweep(path: Path, job: str | None) -> dict[str, Any]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES >> 20} MiB")
        rows = json.loads(path.read_text(encoding="utf-8"))
        points = [_point(row) for row in rows]
        if not points:
            raise ValueError("there are no rounds in it")
        slo = {str(name): float(limit) for name, limit in (rows[0]["slo"] or {}).items()}
        arrivals = str(rows[0]["arrivals"])
    except OSError as error:
        raise UserError(
            f"{path} cannot be read: {error.strerror or error}; `specdec load --out DIR` writes it"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is no sweep, as `specdec load` writes it: {error}") from error
    name = path.resolve().parent.name
    return {"job": job, "name": name, "arrivals": Path(arrivals).name, "slo": slo, "points": points}


def _point(row: Mapping[str, Any]) -> dict[str, Any]:
    figures = {name: _figure(row, *place) for name, place in FIGURES.items()}
    return {"policy": str(row["policy"]), "rate": _number(row["rate"]), **figures}


def _figure(row: Mapping[str, Any], outer: str, inner: str) -> list[float] | None:
    value, ends = row[outer], row["intervals"].get(outer)
    if inner:
        value, ends = (value or {}).get(inner), (ends or {}).get(inner)
    if value is None:
        return None
    low, high = ends or (value, value)
    return [_number(value), *(_number(value if end is None else end) for end in (low, high))]


def _number(value: Any) -> float:
    if not math.isfinite(number := float(value)):
        raise ValueError(f"not a finite number: {value!r:.40}")
    return number
