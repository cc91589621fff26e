"""Plot of the cost-quality curves, with matplotlib."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ianvs_specdec.routing.evaluation.pool import ORACLE, ORACLE_MONEY, ORACLES, RANDOM
from ianvs_specdec.routing.evaluation.results import GRID, Curve, Evaluation, Result
from ianvs_specdec.routing.outcomes.recorded import Floats

COLOURS = ("#1f6fb4", "#d1661c", "#2b8a4b", "#a83a8c", "#7a5c2e", "#c23b3b", "#4a4fb0", "#138a8a")
GREY = "#6b6b6b"


def to_png(evaluation: Evaluation) -> bytes:
    """Quality against the share of the queries in the cloud (not for a pool) and, with costs, against cost. Bands and
    bars are 95 % intervals, markers the routers' decisions.
    """
    # pyplot would need a display.
    from matplotlib.figure import Figure

    priced = any("cost" in result.metrics for result in evaluation.results)
    axes = [money for money, there in ((False, not evaluation.models), (True, priced)) if there]
    figure = Figure(figsize=(12.0 if len(axes) > 1 else 7.0, 4.6), dpi=120, layout="constrained")
    for panel, money in zip(figure.subplots(1, len(axes), squeeze=False)[0], axes, strict=True):
        _draw(panel, evaluation, money)
    found = io.BytesIO()
    figure.savefig(found, format="png")
    return found.getvalue()


def colours(count: int) -> list[str]:
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    if count <= len(COLOURS):
        return list(COLOURS[:count])
    return [to_hex(colour) for colour in colormaps["turbo"](np.linspace(0.0, 1.0, count))]


def _draw(panel: Any, evaluation: Evaluation, money: bool) -> None:
    own = iter(colours(sum(not result.baseline for result in evaluation.results)))
    for result in evaluation.results:
        if result.name == (ORACLE if money else ORACLE_MONEY):
            continue
        if result.baseline and result.curve is None:
            _mark(panel, result, money, GREY, "s")
        elif result.curve is not None:
            colour = GREY if result.baseline else next(own)
            x = _spent(result.curve, money)
            apgr = result.metrics.get("apgr_money" if money else "apgr")
            label = result.name if apgr is None else f"{result.name} ({apgr.value:.3f})"
            style = {RANDOM: "--", ORACLE: ":", ORACLE_MONEY: ":"}.get(result.name, "-")
            panel.plot(x, result.curve.quality, style, color=colour, label=label, linewidth=1.6)
            if not result.baseline:
                if np.isfinite(result.curve.low).all():
                    panel.fill_between(x, result.curve.low, result.curve.high, color=colour, alpha=0.14, linewidth=0)
                _mark(panel, result, money, colour, "o")
    _draw_frontier(panel, evaluation, money)
    panel.set_xlabel("cost of 1,000 queries" if money else "queries sent to the cloud, %")
    panel.set_ylabel("quality, %")
    panel.grid(alpha=0.25)
    panel.legend(title="APGR by cost" if money else "APGR", fontsize=8, title_fontsize=8)


def _spent(curve: Curve, money: bool) -> Floats:
    return 100 * GRID if not money or curve.cost is None else curve.cost


def _draw_frontier(panel: Any, evaluation: Evaluation, money: bool) -> None:
    """The Pareto frontier of the routers without the oracles, if there are several curves."""
    curves = [one.curve for one in evaluation.results if one.curve is not None and one.name not in ORACLES]
    if len(curves) > 2:
        x = np.concatenate([_spent(one, money) for one in curves])
        y = np.concatenate([one.quality for one in curves])
        order = np.lexsort((-y, x))
        x, y = x[order], y[order]
        kept = np.diff(np.maximum.accumulate(y), prepend=-np.inf) > 0
        panel.plot(x[kept], y[kept], color="black", label="Pareto frontier", linewidth=0.7, zorder=3)


def _mark(panel: Any, result: Result, money: bool, colour: str, shape: str) -> None:
    x, quality = result.metrics.get("cost" if money else "share"), result.metrics.get("quality")
    if x is None or quality is None:
        return
    ends = [[quality.value - quality.low], [quality.high - quality.value]]
    bars = np.maximum(np.nan_to_num(np.array(ends)), 0.0)
    panel.errorbar([x.value], [quality.value], yerr=bars, fmt=shape, color=colour, markersize=5, capsize=3)
