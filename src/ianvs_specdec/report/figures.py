"""Figures of a test case: the leaderboard's, completed from its answers, and those of the charts."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.benchmarks.registry import categories as benchmark_categories
from ianvs_specdec.benchmarks.scorers import SCORERS
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.report.metrics.columns import DISTRIBUTIONS, KNOWN, all_columns
from ianvs_specdec.report.metrics.intervals import all_intervals
from ianvs_specdec.report.metrics.table import Table, rounded
from ianvs_specdec.workspace.cases import Case, Row

QUANTILES = (*range(101), 99.5, 99.9)
"""Percents at which a distribution is kept: the values in between are interpolated."""
GROUPED = ("Accuracy", "Speedup", "Mean Accepted Tokens", "Throughput", "Latency", "Edge Ratio")
ASKING = ("judge", "code")
"""Scorers that call a model or run code. A report does neither: it shows the leaderboard's values."""

Kinds = dict[str, dict[str, float | None]]

_UNITS = {
    "Accuracy": ("", 1, "score of the answers against the references: % right, or the benchmark's own scale"),
    "Chance Level": ("", 0, "Accuracy of guessing among the options of multiple choice"),
    "Unparsed Answers": (
        "%",
        -1,
        "share of answers without a letter or number that could be read; they count as wrong",
    ),
    "Edge Ratio": ("%", 0, "share of queries that the edge answered"),
    "Early Exits": ("%", 0, "share of queries of which the edge's answer ended after its first tokens"),
    "Edge Tokens Saved": ("token", 1, "how many more tokens the whole answers have, of those that ended early"),
    "Time to First Token": ("s", -1, "from the request to the first token"),
    "TTFT Answer": ("s", -1, "from the request to the first token of the answer, behind the model's thoughts"),
    "Internal Token Latency": ("s", -1, "time per output token after the first chunk"),
    "Chunk Gap": ("s", -1, "time between two pieces of output that reach the user"),
    "Latency": ("s", -1, "from the request to the last token"),
    "Throughput": ("token/s", 1, "output tokens over busy time; tokens are counted, never chunks"),
    "Speedup": (
        "x",
        1,
        "throughput over that of the same model on the same queries, autoregressive; of both models together where "
        "a router chooses",
    ),
    "Mean Accepted Tokens": (
        "token/step",
        1,
        "tau, the mean accepted length: output tokens per verification step, of both models together where a "
        "router chooses; 1 when autoregressive",
    ),
    "Acceptance Rate": ("", 1, "share of the drafted tokens that were accepted"),
    "Work Amplification": ("", -1, "tokens that the model computed for each token that it put out"),
    "Drafting Share": (
        "%",
        -1,
        "share of the busy time in which our engine made drafts: of decode steps with a draft, without the drafter's "
        "reading of the prompt",
    ),
    "Bandwidth Up": ("B/token", -1, "bytes sent for each output token"),
    "Bandwidth Down": ("B/token", -1, "bytes received for each output token"),
    "Rounds per Answer": ("", -1, "drafts of the edge that the verifier judged, for each answer"),
    "Draft-Ahead Hit Rate": ("", 1, "share of the verdicts for whose outcome a draft was made ahead"),
    "Cloud Busy Time": ("s/token", -1, "time that the verifier worked for each output token, its waits left out"),
    "Break-Even Round Trip": (
        "s",
        1,
        "round trip up to which drafting on the edge is faster than the autoregressive stream",
    ),
    "Recovery Time": ("s", -1, "time from a stream that breaks to the next one"),
    "Sent as Text": ("%", -1, "share of queries that leave the edge as text"),
    "Sent as Token Ids": ("%", -1, "share of queries that leave the edge as token ids, which are text in numbers"),
    "Sent as Hidden States": ("%", -1, "share of queries of which hidden states leave the edge"),
    "Goodput": ("query/s", 1, "queries per second that meet the service-level objective"),
    "Lossless": ("%", 1, "share of queries whose tokens equal the model's own greedy output"),
    "Near Ties": ("%", 0, "share of queries whose first difference is at a near-tie"),
    "Cloud Cost": ("", -1, "per 1,000 queries, from the prices in the cloud model's settings"),
    "Edge Cost": ("", -1, "per 1,000 queries, from the prices in the edge model's settings"),
    "Energy per Token": ("J/token", -1, "energy of the side's machine for each output token, while the model worked"),
    "Mean Power": ("W", -1, "power of the side's machine while the model worked, idle power included"),
    "Idle Power": ("W", -1, "power of the side's machine before the first request"),
    "Routing Overhead": ("s", -1, "the router's own time for a query"),
    "Router AUROC": (
        "",
        1,
        "probability that a query which the cloud answers better has the higher score; random: 0.5",
    ),
    "Router APGR": ("", 1, "share of the cloud's advantage kept, mean over all shares of queries there; random: 0.5"),
    "Edge Prompt Tokens": ("token", 0, "tokens that the edge model read"),
    "Edge Completion Tokens": ("token", 0, "tokens that the edge model wrote"),
    "Cloud Prompt Tokens": ("token", 0, "tokens that the cloud model read"),
    "Cloud Completion Tokens": ("token", 0, "tokens that the cloud model wrote"),
    "Thinking Tokens": ("token", 0, "tokens of thoughts, before the answers' first tokens"),
    "Queries": ("", 0, "number of queries"),
    "Replayed": ("", 0, "queries answered from the journal of an earlier run"),
    "Failed": ("", -1, "queries without an answer"),
    "Retries": ("", -1, "failed attempts that were repeated"),
    "Truncated Prompts": ("", -1, "prompts that lost their oldest tokens to fit into the model's window"),
    "Model Memory": ("MB", -1, "memory of the model's weights and caches"),
}
_PART = re.compile(r"^(?P<base>.*?)(?: p\d+)?(?:: .*)?(?P<end> CI95| Known)?$")


def column(name: str) -> dict[str, Any]:
    """Unit, direction (1: more is better, -1: less is better) and meaning of a column of the leaderboard."""
    match = _PART.match(name)
    base = match["base"] if match else name
    unit, better, about = _UNITS.get(base) or _UNITS.get(base.partition(" ")[2], ("", 0, ""))
    if match and match["end"] == KNOWN:
        unit, better, about = "", 0, f"number of queries of which {base} is known"
    return {"name": name, "unit": unit, "better": better, "about": about}


def plain(value: float) -> float | None:
    """NaN and infinity, which JSON does not have, are None."""
    return value if math.isfinite(value) else None


def safe(row: Row) -> Row:
    """The row as metrics may see it here: nothing is asked and nothing is run to score it."""
    if row[1].get("scorer") not in ASKING and row[1].get("scorer", "none") in SCORERS:
        return row
    result = type(row[1])(row[1])
    result["scorer"] = "none"
    return row[0], result, *row[2:]


def figures(case: Case, metrics: Sequence[str], table: Table) -> dict[str, float | None]:
    """Name -> value. What the leaderboard, whose columns are ``metrics``, says stands; where the answers say otherwise,
    that is noted.

    A column that the leaderboard does not have is computed from the answers, if these are complete.
    """
    told = {name: _number(case.rank[name]) for name in metrics if name in case.rank}
    found: dict[str, float | None] = dict(told)
    if not len(table):
        return found
    differing = []
    for name, compute in {**all_columns(), **all_intervals()}.items():
        value, said = _compute(compute, table), told.get(name)
        if name not in told:
            found[name] = value
        elif value is not None and said is not None and not math.isclose(value, said, rel_tol=1e-5, abs_tol=1e-12):
            differing.append(f"{name} {value:g} (leaderboard: {said:g})")
    if differing and not case.repeats and not case.notes:
        shown = ", ".join(differing[:3]) + (f" and {len(differing) - 3} more" if len(differing) > 3 else "")
        case.notes.append(f"recomputed from the answers and the data file, these figures differ: {shown}")
    return found


def _number(text: str) -> float | None:
    try:
        return plain(float(text))
    except ValueError:
        return None


def _compute(column: Callable[[Table], float], table: Table) -> float | None:
    try:
        return plain(rounded(column(table)))
    except (UserError, ValueError, TypeError, KeyError, IndexError, ImportError):
        return None


def positions(rows: Mapping[int, Row]) -> dict[str, Any] | None:
    """``drafts``: how many were verified; ``rates``: the share of them whose first, second ... token was accepted, as
    vLLM's ``spec_decode_num_accepted_tokens_per_pos`` over ``spec_decode_num_drafts``. None without drafts, or where
    not all steps are known. Of a tree, a position is a level.
    """
    accepted: collections.Counter[int] = collections.Counter()
    for row in rows.values():
        for turn in row[1].get("turns", ()):
            steps, chunks = turn["trace"]["steps"], turn["trace"]["chunks"]
            if sum(step[2] for step in steps) + 1 < sum(chunk[1] for chunk in chunks):
                return None
            accepted.update(step[1] for step in steps if step[0])
    if not accepted:
        return None
    right = [sum(count for number, count in accepted.items() if number > k) for k in range(max(1, *accepted))]
    return {"drafts": accepted.total(), "rates": [float(f"{count / accepted.total():.4g}") for count in right]}


def distributions(table: Table) -> dict[str, Any]:
    """Name -> values (seconds) at ``QUANTILES`` and their number; nothing where no value is defined."""
    found = {}
    for name, values in DISTRIBUTIONS.items():
        defined = values(table)
        defined = defined[~np.isnan(defined)]
        if len(defined):
            points = [float(f"{value:.4g}") for value in np.percentile(defined, QUANTILES)]
            found[name] = {"count": len(defined), "values": points}
    return found


def groups(table: Table) -> Kinds:
    """Kind of query -> figures over its queries, with intervals; empty if there is but one kind."""
    names, members = np.unique(np.array(table.groups, dtype=object).astype(str), return_inverse=True)
    if len(names) < 2:
        return {}
    return {str(name) or "other": _of_part(table, members == number) for number, name in enumerate(names)}


def categories(table: Table) -> Kinds:
    """As ``groups``, the kinds of a benchmark's category taken together, such as MMLU's 57 subjects as four; empty
    where that makes no fewer.
    """
    kinds = np.array(table.groups, dtype=object).astype(str)
    present = set(kinds.tolist())
    sets = {name: present & members for name, members in benchmark_categories().items()}
    # A category that is wholly in another one, as MT-Bench's are in Spec-Bench's, says no more than its kind does.
    sets = {name: own for name, own in sets.items() if own and not any(own < other for other in sets.values())}
    sets |= {kind or "other": {kind} for kind in sorted(present - set().union(*sets.values()))}
    if not 1 < len(sets) < len(present):
        return {}
    return {name: _of_part(table, np.isin(kinds, list(members))) for name, members in sets.items()}


def _of_part(table: Table, chosen: NDArray[np.bool_]) -> dict[str, float | None]:
    """Figures over the chosen queries, with intervals."""
    known = {**all_columns(), **all_intervals()}
    part = table.part(np.flatnonzero(chosen))
    values = {name: rounded(known[name](part)) for metric in GROUPED for name in (metric, f"{metric} CI95")}
    return {"Queries": float(len(part)), **{name: plain(value) for name, value in values.items()}}


def described(mapping: Mapping[str, Any]) -> dict[str, str]:
    """A configuration flattened to texts, keys joined by dots; credentials within addresses are left out."""
    flat: dict[str, str] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{name}": text for name, text in described(value).items()}
        elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
            numbered = {str(number): item for number, item in enumerate(value, 1)}
            flat |= {f"{key}.{name}": text for name, text in described(numbered).items()}
        else:
            text = "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            flat[str(key)] = re.sub(r"(?<=://)[^/@\s]*@", "", text)
    return flat
