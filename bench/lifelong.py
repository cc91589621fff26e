"""``python -m bench.lifelong``: what a drift costs a trained router, and what LifelongRouter regains from feedback.

Reads recorded outcomes (as ``specdec route train`` does) with groups, and runs no model, but that the edge reads the
queries where the trained router is a probe (``--kind probe --edge FILE``). For each seed the outcomes are
divided into rows to train on and rows to test on, and some groups are drawn that drift:

- ``groups``: their questions are new. The router was trained without them; then only they are asked.
- ``edge``: the edge model changes in them. In half of them it becomes as good as the cloud, in the others it keeps 30 %
  of its right answers; all groups are asked.

``frozen`` is the trained router after the drift, ``full`` one that is trained with everything that was learned of the
new situation, ``now`` the trained router after so many feedbacks; ``regained`` = (now - frozen) / (full - frozen), all
APGR (RouteLLM) on test rows of the groups that drift; nan, if nothing was lost. ``old`` is the change of APGR on test
rows of the other groups.

Feedback is ``both`` (on both models' answers to a query: two feedbacks), ``routed`` (on the answer of the side that the
router chose, with exploration), or ``cascade`` (the edge always answers; the cloud, if the router says so).
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.commands import edge_states
from ianvs_specdec.commands.route_train import options_of
from ianvs_specdec.routing.learned.adapted import probe_of
from ianvs_specdec.routing.learned.folder import TrainedRouter
from ianvs_specdec.routing.learned.probe import KIND as PROBE
from ianvs_specdec.routing.learned.training import RouterRecipe, train
from ianvs_specdec.routing.outcomes.recorded import Floats, Outcomes, load_outcomes, save_outcomes
from ianvs_specdec.routing.outcomes.states import RecordedStates
from ianvs_specdec.routing.routers.lifelong import LifelongRouter

FEEDBACK = ("both", "routed", "cascade")
KEPT = 0.3


def apgr(scores: Floats, outcomes: Outcomes) -> float:
    """Area under the share of the quality gap that is recovered, over the share of queries sent to the cloud."""
    gained = outcomes.gain[np.argsort(-scores, kind="stable")].cumsum()
    ends = np.append(np.flatnonzero(np.diff(np.sort(-scores))), len(scores) - 1)
    share = np.concatenate([[0.0], (ends + 1) / len(scores)])
    return float(np.trapezoid(np.concatenate([[0.0], gained[ends]]), share) / gained[-1])


def drifted(
    outcomes: Outcomes, groups: NDArray[np.str_], chosen: list[str], generator: np.random.Generator
) -> Outcomes:
    """The outcomes with another edge model in the chosen groups."""
    edge = outcomes.edge.copy()
    kept = generator.random(len(outcomes)) < KEPT
    for number, group in enumerate(chosen):
        inside = groups == group
        edge[inside] = outcomes.cloud[inside] if number % 2 else (outcomes.edge * kept)[inside]
    return replace(outcomes, edge=edge)


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    outcomes = load_outcomes(options.outcomes)
    groups = np.array(outcomes.groups)
    names = sorted(set(groups.tolist()))
    if len(names) < 3:
        raise SystemExit(f"bench.lifelong: {options.outcomes} has {len(names)} groups; three are needed")
    if options.blind:
        outcomes = replace(outcomes, queries=tuple(replace(query, group="") for query in outcomes.queries))
    states = None
    if options.kind == PROBE:
        states = edge_states.recorded(options, outcomes.queries, options.outcomes)
    else:
        edge_states.refuse(options, "--kind is no probe")
    results: dict[str, list[list[float]]] = {feedback: [] for feedback in options.feedback}
    print("seed  feedback  frozen    now   full  regained  old before   now  change", flush=True)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        generator = np.random.default_rng(seed)
        chosen = generator.permutation(names)[: max(1, round(options.share * len(names)))].tolist()
        drifting, test = np.isin(groups, chosen), generator.random(len(outcomes)) < options.test
        after = drifted(outcomes, groups, chosen, generator) if options.drift == "edge" else outcomes
        known = ~test & ~drifting if options.drift == "groups" else ~test
        recipe = RouterRecipe(options.kind, options.label, options=options_of(options.set), seed=seed, folds=2)
        base, full = (train(part, recipe, states) for part in (outcomes.take(known), after.take(~test)))
        stream = generator.permutation(np.flatnonzero(~test & (drifting if options.drift == "groups" else True)))
        new, old = after.take(test & drifting), outcomes.take(test & ~drifting)
        before = apgr(base.score(old.queries), old)
        ends = apgr(base.score(new.queries), new), apgr(full.score(new.queries), new)
        for feedback in options.feedback:
            router = _taught(base, after, stream, feedback, options, outcomes.take(known), states)
            now, still = (apgr(np.array([router.score(q) for q in part.queries]), part) for part in (new, old))
            results[feedback].append([ends[0], now, ends[1], before, still])
            _show(str(seed), feedback, np.array(results[feedback][-1:]))
    for feedback, rows in results.items():
        _show("mean", feedback, np.array(rows))
    return 0


def _taught(
    base: TrainedRouter,
    after: Outcomes,
    stream: NDArray[np.intp],
    feedback: str,
    options: argparse.Namespace,
    known: Outcomes,
    states: RecordedStates | None,
) -> LifelongRouter:
    """The router after ``options.feedbacks`` feedbacks."""
    with tempfile.TemporaryDirectory() as folder:
        base.save(Path(folder) / "router")
        replay = None
        if options.replay:
            replay = str(Path(folder) / "replay.jsonl")
            save_outcomes(Path(replay), known)
        router = LifelongRouter(str(Path(folder) / "router"), explore=options.explore, replay=replay)
    if states is not None and (probe := probe_of(router.base)) is not None:
        probe.read(states)
    worths = {"edge": after.edge, "cloud": after.cloud}
    for index in stream:
        query = after.queries[index]
        # As it decides of a row, but that no edge is there to read it.
        hard = router.decided(query, router.score(query)).hard
        sides = {"both": ("edge", "cloud"), "routed": ("cloud" if hard else "edge",)}.get(feedback)
        for side in sides or (("edge", "cloud") if hard else ("edge",)):
            if router.feedbacks < options.feedbacks * (2 if feedback == "both" else 1):
                router.learn(query, side, float(worths[side][index]))
    return router


def _show(seed: str, feedback: str, rows: Floats) -> None:
    frozen, now, full, before, still = rows.mean(axis=0)
    regained = 100 * (now - frozen) / (full - frozen) if full > frozen else float("nan")
    print(f"{seed:<5} {feedback:<8} {frozen:7.3f} {now:6.3f} {full:6.3f} {regained:8.0f}% {before:11.3f} {still:5.3f}"
          f" {still - before:+7.3f}", flush=True)  # fmt: skip


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.lifelong", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--outcomes", type=Path, required=True, metavar="FILE", help="recorded outcomes (.csv, .jsonl)")
    parser.add_argument("--drift", choices=("groups", "edge"), default="groups")
    parser.add_argument("--share", type=float, default=0.3, help="of the groups that drift (0.3)")
    parser.add_argument("--test", type=float, default=0.4, help="share of the rows to test on (0.4)")
    parser.add_argument(
        "--feedbacks", type=int, default=300, metavar="N", help="of a side; of both, so many each (300)"
    )
    parser.add_argument("--feedback", choices=FEEDBACK, nargs="+", default=list(FEEDBACK))
    parser.add_argument("--explore", type=float, default=0.05)
    parser.add_argument("--kind", default="logistic", help="of the trained router (logistic)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="an option of that kind")
    parser.add_argument("--label", default="hybrid")
    edge_states.add_arguments(parser)
    parser.add_argument("--blind", action="store_true", help="routers are not told the groups")
    parser.add_argument("--replay", action="store_true", help="some of the training outcomes are replayed")
    parser.add_argument("--seeds", type=int, default=5, metavar="N")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
