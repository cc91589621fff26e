"""Train a router on the outcomes of two models, calibrate it, pick its threshold, and evaluate it on held-out queries.
The output folder is the hyperparameter path of LearnedRouter.

Outcomes are a CSV file (query, edge_correct, cloud_correct) or the JSON lines of specdec route label.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import time
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks.files import non_negative
from ianvs_specdec.commands import hidden_states
from ianvs_specdec.commands.arguments import add_threshold, check_shares
from ianvs_specdec.commands.hyperparameters import read_hyperparameters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.evaluation.results import Result, evaluate
from ianvs_specdec.routing.evaluation.tables import DECIDED, JUDGED, OVERALL
from ianvs_specdec.routing.learned.classifier import TRAINABLE
from ianvs_specdec.routing.learned.folder import TrainedRouter, check_folder
from ianvs_specdec.routing.learned.probe import KIND as PROBE
from ianvs_specdec.routing.learned.probe import ProbeClassifier
from ianvs_specdec.routing.learned.training import RouterRecipe, train
from ianvs_specdec.routing.outcomes.labels import LABELS, label_values
from ianvs_specdec.routing.outcomes.recorded import Outcomes, load_outcomes

SHOWN = {name: title for name, (title, _) in (OVERALL | DECIDED | JUDGED).items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--outcomes", type=Path, required=True, metavar="FILE", help="training outcomes (.csv, .jsonl)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; a router is replaced")
    parser.add_argument("--kind", choices=TRAINABLE, default="logistic", help="kind of router (logistic)")
    parser.add_argument("--label", choices=LABELS, default="gain", help="training label (gain: difference in quality)")
    parser.add_argument("--epsilon", type=float, default=0.0, help="hybrid: better by more than this (0)")
    parser.add_argument(
        "--set", dest="options", action="append", default=[], metavar="NAME=VALUE", help="an option of the kind"
    )
    held = parser.add_mutually_exclusive_group()
    held.add_argument("--held-out", type=float, default=0.25, metavar="SHARE", help="share of held-out queries (0.25)")
    held.add_argument("--test", type=Path, metavar="FILE", help="outcomes of other queries to hold out instead")
    parser.add_argument("--by", choices=("row", "group"), default="row", help="hold out queries, or groups of them")
    parser.add_argument("--split-seed", type=non_negative, default=0, metavar="N", help="seed of the split (0)")
    parser.add_argument("--folds", type=int, metavar="N", help="for calibration and threshold (5; encoder 1)")
    parser.add_argument("--seed", type=non_negative, default=0, metavar="N", help="seed of the training (0)")
    add_threshold(parser)
    hidden_states.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    _check(options)
    outcomes = load_outcomes(options.outcomes)
    if options.test:
        rest, held = outcomes, _unseen(load_outcomes(options.test), outcomes, options.test)
    else:
        rest, held = outcomes.split(options.by, options.held_out, options.split_seed)
    # The arguments have the names of the recipe's fields.
    given = {one.name: getattr(options, one.name) for one in dataclasses.fields(RouterRecipe)}
    recipe = RouterRecipe(**{**given, "options": read_hyperparameters(None, options.options, "--set").values})
    labels = label_values(held, recipe.label, recipe.epsilon)
    states = None
    if options.kind == PROBE:
        # In the order of the files, so that another split reuses the recorded states.
        queries = (*outcomes.queries, *held.queries) if options.test else outcomes.queries
        states = hidden_states.record_states(options, queries, options.out)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("ianvs_specdec.routing.learned").setLevel(logging.INFO)
    started = time.perf_counter()
    router = train(rest, recipe, states)
    seconds = time.perf_counter() - started
    scored = RouterScores.at_threshold(router.kind, router.score(held.queries), router.threshold, labels=labels)
    result = evaluate(held, [scored]).results[-1]
    router.report = {**_report(rest, held, recipe, result), **router.report}
    router.save(options.out)
    _print_results(router, rest, held, result)
    if isinstance(router.classifier, ProbeClassifier):
        print(f"  reads the layers {', '.join(map(str, router.classifier.layers))} of {router.classifier.model}")
    print(f"{options.out}: {recipe.kind} trained in {seconds:.1f} s on {len(rest)} queries")
    return 0


def _check(options: argparse.Namespace) -> None:
    check_folder(options.out)
    check_shares(options, "epsilon", "keep", "cloud_share")
    if not 0 < options.held_out < 1:
        raise UserError(f"--held-out must be between 0 and 1, not {options.held_out:g}")
    if options.kind != PROBE:
        hidden_states.refuse(options, f"--kind {options.kind} reads the query alone")
    if options.folds is not None and not 1 <= options.folds <= 100:
        raise UserError(f"--folds must be from 1 to 100, not {options.folds}")


def _unseen(held: Outcomes, rest: Outcomes, path: Path) -> Outcomes:
    fresh = ~np.isin(held.digests(), rest.digests())
    if not fresh.any():
        raise UserError(f"{path}: all of its queries are among those that are trained on")
    if not fresh.all():
        print(f"{path}: {(~fresh).sum()} of {len(held)} queries are trained on, and left out here")
    return held.take(fresh)


def _report(rest: Outcomes, held: Outcomes, recipe: RouterRecipe, result: Result) -> dict[str, Any]:
    metrics = {
        name: {key: round(value, 6) for key, value in vars(estimate).items()}
        for name, estimate in result.metrics.items()
        if name in SHOWN
    }
    sides = {name: part.summary() for name, part in (("trained_on", rest), ("held_out", held))}
    return {"recipe": dataclasses.asdict(recipe), **sides, "metrics": metrics}


def _print_results(router: TrainedRouter, rest: Outcomes, held: Outcomes, result: Result) -> None:
    edge, cloud = 100 * held.edge.mean(), 100 * held.cloud.mean()
    print(f"{len(held)} queries held out: edge {edge:.1f} %, cloud {cloud:.1f} %; threshold {router.threshold:.4f}")
    if (sent := result.metrics["share"].value) in (0.0, 100.0):
        where = "the cloud" if sent else "the edge"
        print(f"  at this threshold every query goes to {where}: give --cloud-share, another --keep or more outcomes")
    for name, title in SHOWN.items():
        if found := result.metrics.get(name):
            print(f"  {title:<16}{found.value:8.3f}  [{found.low:.3f}, {found.high:.3f}]")
