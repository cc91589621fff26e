"""Evaluate routers on recorded outcomes, compared with the edge alone, the cloud alone, random routing and the oracle.
With --models, routers choose among several models. No model runs, except that the edge reads the queries for a probe
unless their hidden states are stored.

OUT gets metrics.csv, curves.csv, comparisons.csv, evaluation.json and, with matplotlib, curves.png. Every figure has a
95 % interval (bootstrap over queries, not stratified); differences are paired.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ianvs_specdec.benchmarks.files import non_negative
from ianvs_specdec.commands import hidden_states
from ianvs_specdec.common.errors import UserError, install_command, optional_import
from ianvs_specdec.common.storage.atomic import temporary_folder
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.evaluation import tables
from ianvs_specdec.routing.evaluation.bootstrap import RESAMPLES
from ianvs_specdec.routing.evaluation.inputs import (
    EvaluationInputs,
    NamedRouter,
    limit_threads,
    load_router,
    read_scores,
    routers_of_job,
    undefined_metrics,
)
from ianvs_specdec.routing.evaluation.metrics import RouterScores
from ianvs_specdec.routing.evaluation.pool import BASELINES
from ianvs_specdec.routing.evaluation.results import evaluate_policies
from ianvs_specdec.routing.evaluation.rewording import reword
from ianvs_specdec.routing.evaluation.robustness import robustness
from ianvs_specdec.routing.outcomes.job import outcomes_of_job
from ianvs_specdec.routing.outcomes.labels import LABELS
from ianvs_specdec.routing.outcomes.recorded import Floats, load_outcomes, load_pool, prices_of

FEWEST = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    _add_source(parser)
    _add_routers(parser)
    add("-o", "--out", type=Path, required=True, metavar="DIR", help="folder to write into")
    held_out = "evaluate only the queries that specdec route train holds out"
    add("--held-out", type=float, metavar="SHARE", help=held_out)
    add("--by", choices=("row", "group"), help="hold out rows or groups (default row)")
    add("--split-seed", type=non_negative, metavar="N", help="seed of the held-out queries (default 0)")
    add("--include-seen", action="store_true", help="include training queries of the routers")
    sample = "queries to time one by one for the overhead (default 200)"
    add("--sample", type=int, default=200, metavar="N", help=sample)
    add("--threads", type=int, default=1, metavar="N", help="CPU threads for scoring (default 1)")
    resamples = f"bootstrap resamples (default {RESAMPLES})"
    add("--resamples", type=int, default=RESAMPLES, metavar="N", help=resamples)
    robustness = """also reword each question without changing its meaning (case, spaces, order of options, typos,
    politeness) and count the decisions of --router that change"""
    add("--robustness", action="store_true", help=robustness)
    add("--seed", type=int, default=0, metavar="N", help="of the bootstrap and of --robustness (default 0)")
    hidden_states.add_arguments(parser)


def _add_source(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    outcomes = """CSV with the columns query, edge_correct, cloud_correct and optionally id, group, edge_cost,
    cloud_cost; or the output of specdec route label (.jsonl)"""
    source.add_argument("--outcomes", type=Path, metavar="FILE", help=outcomes)
    job = "a finished job's folder: its answers, and its routers' scores"
    source.add_argument("--job", type=Path, metavar="DIR", help=job)
    models = """route among these models, two or more; --outcomes needs a column NAME_correct for each, and NAME_cost
    for each model without a price per answer"""
    parser.add_argument("--models", nargs="+", metavar="NAME[=PRICE]", help=models)
    threshold = """minimum score of a query for the cloud, for --scores (default 0.5 if scores are from 0 to 1); with
    --models, one for each more expensive model (default: evenly spaced)"""
    parser.add_argument("--threshold", type=float, nargs="+", metavar="X", help=threshold)


def _add_routers(parser: argparse.ArgumentParser) -> None:
    router = """folders written by specdec route train, or names of routers without a folder (RandomRouter: one draw);
    always-edge, always-cloud, random (the expectation) and oracle are always included"""
    parser.add_argument("--router", nargs="+", action="extend", default=[], metavar="DIR", help=router)
    scores = """CSV with the columns router, score, and query_id or row (from 0); with --models optionally model: the
    score is then the expected quality of that model"""
    parser.add_argument("--scores", type=Path, metavar="FILE", help=scores)
    label = "label that the scores of --scores and --job predict, for ECE (default hybrid: the cloud is better)"
    parser.add_argument("--label", choices=LABELS, default="hybrid", help=label)


@optional_import()
def run(options: argparse.Namespace) -> int:
    _check(options)
    began = time.perf_counter()
    inputs = _gather(options)
    started = time.perf_counter()
    policies = [inputs.policy(router, options.threshold) for router in inputs.routers]
    inputs.notes += undefined_metrics(inputs, policies)
    evaluation = evaluate_policies(inputs.outcomes, policies, resamples=options.resamples, seed=options.seed)
    source = str(options.outcomes or options.job)
    document = tables.to_document(evaluation, source=source, left_out=inputs.left_out, notes=inputs.notes)
    files: dict[str, str | bytes] = {
        **{f"{name}.csv": tables.to_csv(document[name]) for name in ("metrics", "curves", "comparisons")},
        "evaluation.json": json.dumps(document, indent=1, allow_nan=False) + "\n",
    }
    if importlib.util.find_spec("matplotlib"):
        from ianvs_specdec.routing.evaluation.plot import to_png

        files["curves.png"] = to_png(evaluation)
    else:
        inputs.notes.append(f"no curves.png: the package matplotlib is not installed ({install_command('route')})")
    _write(options.out, files)
    seconds = time.perf_counter() - started
    for note in inputs.notes:
        print(f"note: {note}", file=sys.stderr)
    print(tables.to_text(evaluation))
    print(
        f"{options.out}: {', '.join(files)}; {evaluation.queries} queries, {options.resamples} draws; {seconds:.1f} s, "
        f"and {started - began:.1f} s to read and score",
        file=sys.stderr,
    )
    return 0


def _check(options: argparse.Namespace) -> None:
    there = next(place for place in (options.out, *options.out.parents) if place.exists())
    if not there.is_dir():
        raise UserError(f"--out {options.out}: {there} is a file; give a folder to write into")
    if options.resamples < FEWEST:
        raise UserError(f"--resamples must be at least {FEWEST}, not {options.resamples}: fewer give no interval")
    for name, least in (("seed", 0), ("sample", 0), ("threads", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} must be {least} or more, not {getattr(options, name)}")
    if options.robustness and not {*options.router} - {*BASELINES}:
        raise UserError("--robustness rewords the questions for the routers of --router: give one")
    if options.held_out is None and (options.by or options.split_seed is not None):
        raise UserError("--by and --split-seed need --held-out SHARE")
    if options.held_out is not None and not 0 < options.held_out < 1:
        raise UserError(f"--held-out must be a share between 0 and 1, not {options.held_out:g}")
    _check_models(options)


def _check_models(options: argparse.Namespace) -> None:
    if options.models and options.job:
        raise UserError("--models is for --outcomes: a job has an edge and a cloud model")
    if options.threshold is None:
        return
    given = " ".join(f"{threshold:g}" for threshold in options.threshold)
    if not np.isfinite(options.threshold).all():
        raise UserError(f"--threshold must be a number, not {given}")
    wanted = len(options.models) - 1 if options.models else 1
    if len(options.threshold) != wanted or (np.diff(options.threshold) < 0).any():
        many = f"{wanted} increasing numbers, one for each model except the cheapest" if wanted > 1 else "one number"
        raise UserError(f"--threshold must be {many}, not {given}")
    if options.scores is None and not options.models:
        raise UserError("--threshold is for --scores: a trained router has its own")


def _gather(options: argparse.Namespace) -> EvaluationInputs:
    if options.models:
        inputs = EvaluationInputs(load_pool(options.outcomes, prices_of(options.models)))
    elif options.outcomes:
        inputs = EvaluationInputs(load_outcomes(options.outcomes))
    else:
        inputs = EvaluationInputs(of_job := outcomes_of_job(options.job))
        for scored in routers_of_job(options.job, of_job):
            inputs.add(scored, "of the job")
    for name, scores in read_scores(options.scores, inputs.outcomes).items() if options.scores else ():
        inputs.add(_with_threshold(name, scores, options), options.scores.name)
    named = [load_router(name) for name in options.router if name not in BASELINES]
    if options.held_out is not None:
        held = inputs.outcomes.held_out(options.by or "row", options.held_out, options.split_seed or 0)
        inputs.take(held, "not held out")
    if not options.include_seen:
        inputs.exclude_training_queries(named, options.job)
    inputs.check_scores()
    inputs.set_labels(options.label)
    recorded = [router.name for router in inputs.routers]
    _score(options, inputs, named)
    if options.robustness:
        _reword(options, inputs, named, recorded)
    return inputs


def _score(options: argparse.Namespace, inputs: EvaluationInputs, named: Sequence[NamedRouter]) -> None:
    _read_probes(options, named, inputs.outcomes.queries)
    if any(one.probe for one in named):
        inputs.notes.append("the overhead of a probe is without the edge's reading of the query; that of a job has it")
    if named:
        with limit_threads(options.threads):
            for one in named:
                inputs.add(one.scored(inputs.outcomes, options.sample), one.given)


def _reword(
    options: argparse.Namespace, inputs: EvaluationInputs, named: Sequence[NamedRouter], recorded: Sequence[str]
) -> None:
    """Have the ``named`` routers, which follow those with ``recorded`` scores, score the reworded questions."""
    reworded = reword(inputs.outcomes.queries, options.seed)
    counts = ", ".join(f"{kind} {len(found)}" for kind, found in reworded.items())
    inputs.notes.append(f"robustness: reworded of {len(inputs.outcomes)} questions: {counts}")
    if recorded:
        names = ", ".join(recorded)
        inputs.notes.append(
            f"robustness: not known for {names}: only the original questions have answers and scores (--router DIR "
            "evaluates a trained router)"
        )
    queries = [query for found in reworded.values() for query in found.values()]
    _read_probes(options, named, queries, f"reworded-{options.seed}")
    with limit_threads(options.threads):
        for place, one in enumerate(named, start=len(recorded)):
            choose = functools.partial(inputs.decisions, one.threshold, options.threshold)
            scores, drawn = inputs.routers[place].scores, {"resamples": options.resamples, "seed": options.seed}
            found = robustness(scores, reworded, one.scores, choose, **drawn)
            inputs.routers[place] = replace(inputs.routers[place], reworded=found)


def _with_threshold(name: str, scores: Floats, options: argparse.Namespace) -> RouterScores:
    if options.models:
        return RouterScores(name, scores)
    threshold = options.threshold[0] if options.threshold else None
    if threshold is None and np.nanmin(scores) >= 0 and np.nanmax(scores) <= 1:
        threshold = 0.5
    return RouterScores(name, scores) if threshold is None else RouterScores.at_threshold(name, scores, threshold)


def _read_probes(
    options: argparse.Namespace, named: Sequence[NamedRouter], queries: Sequence[Query], part: str = ""
) -> None:
    """Have the edge read the queries for the probes. ``part``: see ``record_states``."""
    probes = [one.probe for one in named if one.probe is not None]
    if not probes:
        hidden_states.refuse(options, "no --router is a probe")
        return

    def check(model: str, digest: str) -> None:
        for probe in probes:
            probe.check_edge(model, digest)

    states = hidden_states.record_states(options, queries, options.out, check, part)
    for probe in probes:
        probe.set_states(states)


def _write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write all files atomically, or none if one cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder / "evaluation") as temporary:
        for name, content in files.items():
            data = content.encode("utf-8") if isinstance(content, str) else content
            (temporary / name).write_bytes(data)
        for name in files:
            os.replace(temporary / name, folder / name)
