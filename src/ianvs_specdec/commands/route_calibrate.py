"""Calibrate CascadeRouter on queries with known outcomes: fit the probability that the cloud answers better to signals
of the edge's answer, and pick the threshold. The output file is the hyperparameter calibration of CascadeRouter.

Outcomes are the JSON lines of specdec route label. The edge model runs again, with log-probabilities, and stores its
answers in the same journal. Figures are cross-fitted: each query is scored by a fit to the others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ianvs_specdec.benchmarks.files import non_negative
from ianvs_specdec.commands.arguments import add_threshold, check_out, check_shares, writing
from ianvs_specdec.commands.early_decision import PRECISION, AnswerSignals, arrays, fit_early
from ianvs_specdec.commands.hyperparameters import add_model, model_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.progress import Progress
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.evaluation.results import LEVELS, Evaluation, evaluate
from ianvs_specdec.routing.learned.training import fold_numbers, quality_threshold, share_threshold
from ianvs_specdec.routing.learned.uncertainty import EarlyModel, UncertaintyModel, cross_fitted, fit
from ianvs_specdec.routing.outcomes.collection import job_environment
from ianvs_specdec.routing.outcomes.labels import LABELS, targets
from ianvs_specdec.routing.outcomes.recorded import Outcomes, load_outcomes
from ianvs_specdec.routing.routers.cascade import ROUTER_SIGNAL, CascadeRouter
from ianvs_specdec.routing.routers.learned import UNANSWERED, LearnedRouter
from ianvs_specdec.routing.routers.signals import SIGNALS

FITTED = "calibrated"
SHOWN = ("auroc", "apgr", "cpt50", "cpt80", "ece", "share", "quality")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--outcomes", type=Path, required=True, metavar="FILE", help="outcomes of the queries (.jsonl)")
    add_model(parser, "edge", required=True)
    add("--journal", type=Path, metavar="DIR", help="folder of the journal (default: FILE.journal)")
    signals = f"{', '.join(SIGNALS)}, or the name of a --router; repeatable"
    add("--signal", action="append", required=True, metavar="NAME", help=signals)
    router = f"a trained router, whose score is the signal NAME ({ROUTER_SIGNAL}); repeatable, with one probe at most"
    add("--router", type=named_folder, action="append", default=[], metavar="[NAME=]DIR", help=router)
    after = f"""also fit a score of the first N tokens of the edge's answer, for decide_after: an answer ends there if
    {100 * PRECISION:.0f} %% of the answers with this score or a higher one would go to the cloud"""
    add("--after", type=non_negative, metavar="N", help=after)
    add("-o", "--out", type=Path, required=True, metavar="FILE", help="calibration to write (.json)")
    add("--label", choices=LABELS, default="hybrid", help="label to predict (hybrid: the cloud is better)")
    add("--epsilon", type=float, default=0.0, help="hybrid: better by more than this (0)")
    add("--folds", type=int, default=10, metavar="N", help="folds of the cross-fitting (10)")
    add("--seed", type=non_negative, default=0, metavar="N", help="seed of the folds (0)")
    add_threshold(parser)


def named_folder(text: str) -> tuple[str, Path]:
    name, named, folder = text.partition("=")
    return (name, Path(folder)) if named else (ROUTER_SIGNAL, Path(text))


def run(options: argparse.Namespace) -> int:
    _check(options)
    priors = {name: LearnedRouter(str(folder)) for name, folder in options.router}
    outcomes = _unseen(load_outcomes(options.outcomes), priors)
    # Before the edge runs, to report unusable outcomes early.
    targets(outcomes, options.label, options.epsilon)
    outcomes, signals = _signals(options, outcomes, priors)
    doubts = arrays(signals.doubts)
    labels = targets(outcomes, options.label, options.epsilon)
    numbers = fold_numbers(outcomes, "row", options.folds, options.seed)
    folds = [np.flatnonzero(numbers == fold) for fold in range(options.folds)]
    held = cross_fitted(doubts, labels, folds)
    share = options.cloud_share
    threshold = quality_threshold(held, outcomes, options.keep) if share is None else share_threshold(held, share)
    begun = None if options.after is None else fit_early(signals, options.after, labels, folds, held >= threshold)
    alone = [RouterScores(name, values) for name, values in doubts.items()]
    scored = [*alone, *([] if begun is None else [begun.scored(held, threshold)])]
    evaluation = evaluate(outcomes, [*scored, RouterScores.at_threshold(FITTED, held, threshold, labels=labels)])
    slopes, offset = fit(doubts, labels)
    rounded = {name: round(slope, 6) for name, slope in slopes.items()}
    report = {
        **outcomes.summary(),
        "label": options.label,
        "apgr": round(evaluation.results[-1].metrics["apgr"].value, 4),
        **({} if begun is None else {"saved": round(begun.saved, 4)}),
    }
    after = None if begun is None else EarlyModel(options.after, begun.doubt)
    fitted = UncertaintyModel(tuple(slopes), rounded, round(offset, 6), round(threshold, 6), report, after)
    with writing(options.out):
        fitted.save(options.out)
    _print_results(evaluation, slopes, options.out)
    if begun is not None:
        print(begun.summary())
    return 0


def _check(options: argparse.Namespace) -> None:
    check_out(options.out)
    check_shares(options, "epsilon", "keep", "cloud_share")
    if not 2 <= options.folds <= 100:
        raise UserError(f"--folds must be from 2 to 100, not {options.folds}")
    if options.after == 0:
        raise UserError("--after must be at least 1 token")
    names = [name for name, _ in options.router]
    if len(set(names)) < len(names):
        raise UserError(f"--router: two have the same name ({', '.join(names)}): give NAME=DIR, each another NAME")
    folders = {name: str(folder) for name, folder in options.router}
    prior = folders.pop(ROUTER_SIGNAL, None)
    router = None if prior is None else {"name": "LearnedRouter", "path": prior}
    CascadeRouter.check_hyperparameters({"signal": options.signal, "router": router, "routers": folders or None})


def _unseen(outcomes: Outcomes, priors: Mapping[str, LearnedRouter]) -> Outcomes:
    """The queries that no router was trained with: its scores of those are too good."""
    fresh = np.ones(len(outcomes), dtype=bool)
    for prior in priors.values():
        fresh &= ~np.isin(outcomes.digests(), prior.trained.seen)
    if not fresh.any():
        raise UserError(f"--router was trained with all {len(outcomes)} queries: give outcomes of others")
    if not fresh.all():
        print(f"{(~fresh).sum()} of {len(outcomes)} queries are left out: --router was trained with them")
    return outcomes.take(fresh)


def _signals(
    options: argparse.Namespace, outcomes: Outcomes, priors: Mapping[str, LearnedRouter]
) -> tuple[Outcomes, AnswerSignals]:
    """The outcomes of the queries that the edge answers, and the signals of its answers."""
    settings = model_of(options, "edge", EdgeModel.check_hyperparameters, "logprobs=true")
    journal = options.journal or options.outcomes.with_suffix(".journal")
    progress = Progress("answers", {"edge": len(outcomes)})
    answered = np.zeros(len(outcomes), dtype=bool)
    signals = AnswerSignals(options.signal, options.after)
    with job_environment(journal, 1):
        model = EdgeModel(**settings)
        try:
            for place, query in enumerate(outcomes.queries):
                row = {"query": json.loads(json.dumps(query.to_json()))}
                known = {name: prior.decide(row) for name, prior in priors.items()}
                if any(decision.reason == UNANSWERED for decision in known.values()):
                    continue
                response = model.answer(row)
                progress.step("edge", bool(response["replayed"] or response["cached"]))
                if response.get("error"):
                    continue
                answered[place] = True
                signals.add(query, response, {name: decision.score for name, decision in known.items()})
        finally:
            progress.close()
            model.cleanup()
    if not answered.any():
        raise UserError(f"the edge model has answered none of {len(outcomes)} queries")
    return outcomes.take(answered), signals


def _print_results(evaluation: Evaluation, slopes: dict[str, float], out: Path) -> None:
    print(f"{evaluation.queries} queries, {evaluation.resamples} bootstrap draws, 95 % intervals")
    for result in evaluation.results:
        if result.baseline:
            continue
        metrics = [f"{name} {found.value:.3f} [{found.low:.3f}, {found.high:.3f}]" for name in SHOWN
                   if (found := result.metrics.get(name))]  # fmt: skip
        ahead = f"above random at {evaluation.ahead_of_random(result.name)} of {len(LEVELS)} cost levels"
        print(f"  {result.name}: {', '.join(metrics)}; {ahead}")
    weights = ", ".join(f"{name} {slope:.3f}" for name, slope in slopes.items())
    print(f"{out}: slopes {weights}; threshold {evaluation.results[-1].threshold:.4f}")
