"""What a query's row of the table says besides times, tokens and money.

- ``truncated``: prompts that were cut to fit, of all requests made for the query; ``untold``: those whose server does
  not tell whether they were;
- ``unparsed``: 1 = its answer holds no letter or number that could be read; NaN where none is looked for;
- ``chance``: percent that guessing among its options gives;
- ``stopped``: 1 = the edge's answer ended early; NaN where no cascade decides early. ``saved``: the tokens that it did
  not write; NaN where they are not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ianvs_specdec.benchmarks.scorers import EXTRACTED

Response = Mapping[str, Any]
QUERY = ("truncated", "untold", "unparsed", "chance", "stopped", "saved")
NAN = float("nan")


def of(result: Response, edge: Response | None, cloud: Response | None) -> dict[str, float]:
    """``QUERY`` of one query."""
    return {
        **_cut_prompts([answer for answer in (edge, cloud) if answer is not None] or [result]),
        "unparsed": _unparsed(result),
        "chance": 100.0 / result["options"] if result.get("options") else NAN,
        **_stopped(result, edge),
    }


def _cut_prompts(answers: list[Response]) -> dict[str, float]:
    parts = [part for answer in answers for part in (answer, *answer.get("samples", ()))]
    cut = [turn.get("truncated", 0) for part in parts for turn in part.get("turns", ())]
    return {"truncated": float(sum(bool(tokens) for tokens in cut)), "untold": float(cut.count(None))}


def _unparsed(result: Response) -> float:
    read = result.get("scorer") in EXTRACTED and "prediction" in result and not result.get("error")
    return float(result["prediction"] is None) if read else NAN


def _stopped(result: Response, edge: Response | None) -> dict[str, float]:
    if (result.get("routing") or {}).get("decide_after") is None:
        return {"stopped": NAN, "saved": NAN}
    told = None if edge is None else edge.get("stopped")
    if told is None:
        return {"stopped": 0.0, "saved": 0.0}
    return {"stopped": 1.0, "saved": NAN if told["saved"] is None else float(told["saved"])}
