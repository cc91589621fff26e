"""Fit how much of the edge's answers CascadeRouter is to doubt, on queries whose outcomes are known: which probability
that the cloud answers better the signals amount to, and the threshold. The file that is written is what CascadeRouter
wants as its calibration in YAML.

Outcomes are the JSON lines that specdec route label writes. The edge model is asked again through the same journal,
with log-probabilities; what is in the journal already is not asked twice. Figures are cross-fitted: each query is
scored by a fit to others.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from ianvs_specdec.benchmarks.files import natural
from ianvs_specdec.commands.hyperparameters import add_model, model_of
from ianvs_specdec.commands.output import check_out, written
from ianvs_specdec.commands.threshold import add_threshold, check_shares
from ianvs_specdec.errors import UserError
from ianvs_specdec.evaluation.curve import Sides
from ianvs_specdec.evaluation.quality import Scored
from ianvs_specdec.evaluation.results import LEVELS, Evaluation, evaluate
from ianvs_specdec.learned.doubt import Doubt
from ianvs_specdec.learned.doubt_fit import cross_fitted, fit
from ianvs_specdec.learned.threshold import keeping, sharing
from ianvs_specdec.learned.training import fold_numbers
from ianvs_specdec.outcomes.asking import running
from ianvs_specdec.outcomes.labels import LABELS, targets
from ianvs_specdec.outcomes.recorded import Floats, Outcomes, load_outcomes
from ianvs_specdec.plugin import edge_first
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.progress import Progress
from ianvs_specdec.routers.cascade import PRIOR, CascadeRouter
from ianvs_specdec.routers.learned import UNANSWERED, LearnedRouter
from ianvs_specdec.routers.signals import SIGNALS

FITTED = "calibrated"
SHOWN = ("auroc", "apgr", "cpt50", "cpt80", "ece", "share", "quality")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--outcomes", type=Path, required=True, metavar="FILE", help="what became of the queries (.jsonl)"
    )
    add_model(parser, "edge", required=True)
    parser.add_argument("--journal", type=Path, metavar="DIR", help="folder of the journal (default: FILE.journal)")
    parser.add_argument(
        "--signal", action="append", required=True, metavar="NAME", help=f"{', '.join((*SIGNALS, PRIOR))}; repeatable"
    )
    parser.add_argument("--router", type=Path, metavar="DIR", help=f"a trained router, whose score is signal {PRIOR}")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help="calibration to write (.json)")
    parser.add_argument("--label", choices=LABELS, default="hybrid", help="what to tell (hybrid: the cloud is better)")
    parser.add_argument("--epsilon", type=float, default=0.0, help="hybrid: better by more than this (0)")
    parser.add_argument("--folds", type=int, default=10, metavar="N", help="of the cross-fitting (10)")
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help="draws the folds (0)")
    add_threshold(parser)


def run(options: argparse.Namespace) -> int:
    _check(options)
    router = None if options.router is None else {"name": "LearnedRouter", "path": str(options.router)}
    CascadeRouter.check_hyperparameters({"signal": options.signal, "router": router})
    prior = None if options.router is None else LearnedRouter(str(options.router))
    outcomes = _unseen(load_outcomes(options.outcomes), prior)
    # What cannot be learned from is told before the edge is asked.
    targets(outcomes, options.label, options.epsilon)
    outcomes, doubts = _doubts(options, outcomes, prior)
    labels = targets(outcomes, options.label, options.epsilon)
    numbers = fold_numbers(outcomes, "row", options.folds, options.seed)
    held = cross_fitted(doubts, labels, [np.flatnonzero(numbers == fold) for fold in range(options.folds)])
    share = options.cloud_share
    threshold = keeping(held, outcomes, options.keep) if share is None else sharing(held, share)
    alone = [Scored(name, values) for name, values in doubts.items()]
    evaluation = evaluate(Sides.of(outcomes), [*alone, Scored.at(FITTED, held, threshold, labels=labels)])
    slopes, offset = fit(doubts, labels)
    report = {
        **outcomes.summary(),
        "label": options.label,
        "apgr": round(evaluation.results[-1].metrics["apgr"].value, 4),
    }
    rounded = {name: round(slope, 6) for name, slope in slopes.items()}
    with written(options.out):
        Doubt(tuple(slopes), rounded, round(offset, 6), round(threshold, 6), report).save(options.out)
    _tell(evaluation, slopes, options.out)
    return 0


def _check(options: argparse.Namespace) -> None:
    check_out(options.out)
    check_shares(options, "epsilon", "keep", "cloud_share")
    if not 2 <= options.folds <= 100:
        raise UserError(f"--folds must be from 2 to 100, not {options.folds}")


def _unseen(outcomes: Outcomes, prior: LearnedRouter | None) -> Outcomes:
    """Without the queries that the router was trained with: its scores of them are better than those of others."""
    if prior is None:
        return outcomes
    fresh = ~np.isin(outcomes.digests(), prior.trained.seen)
    if not fresh.any():
        raise UserError(f"--router was trained with all {len(outcomes)} queries: give outcomes of others")
    if not fresh.all():
        print(f"{(~fresh).sum()} of {len(outcomes)} queries are left out: --router was trained with them")
    return outcomes.take(fresh)


def _doubts(
    options: argparse.Namespace, outcomes: Outcomes, prior: LearnedRouter | None
) -> tuple[Outcomes, dict[str, Floats]]:
    """The signals of the edge's answers, and the outcomes of the queries that it has answered."""
    settings = model_of(options, "edge", EdgeModel.check_hyperparameters, "logprobs=true")
    journal = options.journal or options.outcomes.with_suffix(".journal")
    progress = Progress("answers", {"edge": len(outcomes)})
    answered = np.zeros(len(outcomes), dtype=bool)
    doubts: dict[str, list[float]] = {name: [] for name in options.signal}
    with running(journal, 1):
        model = EdgeModel(**settings)
        try:
            for place, query in enumerate(outcomes.queries):
                row = {"query": json.loads(json.dumps(query.to_json()))}
                known = None if prior is None else prior.decide(row)
                if known is not None and known.reason == UNANSWERED:
                    continue
                response = model.answer(row, held=edge_first.held(row))
                progress.step("edge", bool(response["replayed"] or response["cached"]))
                if response.get("error"):
                    continue
                answered[place] = True
                for name, values in doubts.items():
                    values.append(known.score if known and name == PRIOR else SIGNALS[name](response))
        finally:
            progress.close()
            model.cleanup()
    if not answered.any():
        raise UserError(f"the edge model has answered none of {len(outcomes)} queries")
    return outcomes.take(answered), {name: np.array(values) for name, values in doubts.items()}


def _tell(evaluation: Evaluation, slopes: dict[str, float], out: Path) -> None:
    print(f"{evaluation.queries} queries, {evaluation.resamples} bootstrap draws, 95 % intervals")
    for result in evaluation.results:
        if result.baseline:
            continue
        told = [f"{name} {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]" for name in SHOWN
                if (found := result.metrics.get(name))]  # fmt: skip
        ahead = f"above random at {evaluation.ahead_of_random(result.name)} of {len(LEVELS)} cost levels"
        print(f"  {result.name}: {', '.join(told)}; {ahead}")
    weights = ", ".join(f"{name} {slope:.3f}" for name, slope in slopes.items())
    print(f"{out}: slopes {weights}; threshold {evaluation.results[-1].threshold:.4f}")
