"""Charts of split decoding: time per token over the round trip, for each drafter and for streaming from the cloud."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from ianvs_specdec.backends.split.options import named_value
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.link import Path as NetworkPath
from ianvs_specdec.workspace.cases import Case

BACKEND, PLAIN = "SplitSpecDec", "autoregressive stream"
TIME, FORMULA = "Internal Token Latency", "Break-Even Round Trip"
ROUND_TRIP = ("delay", "jitter", "preset")
"""Options of a path that determine its round trip."""
SHOWN = ("mode", "length", "in_flight", "outage", "branches", "nodes")
"""Options of an edge in the name of its line."""

Points = dict[float, Mapping[str, Any]]
"""Round trip in seconds -> figures of the test case."""


def grids(cases: Sequence[Case], figures: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each job and kind of path (all delays): ``job``, ``name`` (of the path) and ``lines``.

    A line has ``name``, ``points`` (``[round trip, seconds per token, half of its interval]``) and whether it
    ``splits``; if so, also ``measured``, the round trip at which it crosses the autoregressive line, and ``formula``,
    the break-even round trips of its test cases.
    """
    found: dict[tuple[str, str], dict[str, Points]] = {}
    for case, known in zip(cases, figures, strict=True):
        cloud = case.hyperparameters("cloud")
        if cloud.get("backend") != BACKEND or known.get(TIME) is None or known.get("Cloud Busy Time") is None:
            continue
        if (path := _path(cloud.get("link"))) is not None:
            lines = found.setdefault((case.job, _kind(path)), {})
            lines.setdefault(_line(cloud), {})[path.round_trip] = known
    return [
        {
            "job": job,
            "name": kind,
            "lines": [_drawn(name, points, lines.get(PLAIN, {})) for name, points in lines.items()],
        }
        for (job, kind), lines in found.items()
    ]


def _path(link: Any) -> NetworkPath | None:
    try:
        return NetworkPath.parse({"preset": link} if isinstance(link, str) else link or {})
    except (UserError, TypeError, ValueError):
        # Invalid settings in a workspace are skipped.
        return None


def _kind(path: NetworkPath) -> str:
    default, own = NetworkPath().to_json(), path.to_json()
    differing = (key for key in own if key not in ROUND_TRIP and own[key] != default[key])
    return ", ".join(f"{key} {_text(own[key])}" for key in differing)


def _text(value: Any) -> str:
    return f"{value / 1e6:g} Mbit/s" if isinstance(value, float) and value >= 1 else f"{value}"


def _line(cloud: Mapping[str, Any]) -> str:
    edge, beside = (_mapping(cloud, name) for name in ("edge", "beside"))
    if method := edge.get("method"):
        return " ".join([str(method), *(f"{key}={edge[key]}" for key in SHOWN if key in edge and edge[key] != "split")])
    drafter = beside.get("backend", "autoregressive")
    return PLAIN if drafter == "autoregressive" else f"{drafter} beside the model, streamed"


def _mapping(cloud: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    try:
        value = named_value(cloud.get(name), cloud.get("named"), name)
    except UserError:
        return {}
    return value if isinstance(value, Mapping) else {}


def _drawn(name: str, points: Points, plain: Points) -> dict[str, Any]:
    ordered = sorted(points.items())
    line = {
        "name": name,
        "points": [[way, known[TIME], known.get(f"{TIME} CI95") or 0.0] for way, known in ordered],
        "splits": any(known.get("Rounds per Answer") for known in points.values()),
    }
    if not line["splits"]:
        return line
    later = [(way, known[TIME] - plain[way][TIME]) for way, known in ordered if way in plain]
    formula = [known[FORMULA] for _, known in ordered if known.get(FORMULA) is not None]
    return {**line, "measured": _crossing(later), "formula": formula}


def _crossing(later: Sequence[tuple[float, float]]) -> float | None:
    """The round trip at which the difference becomes positive, interpolated linearly; None if it does not."""
    for (near, below), (far, above) in itertools.pairwise(later):
        if below <= 0 < above:
            return near + (far - near) * -below / (above - below)
    return None
