"""Run an edge and a cloud model on the questions of a data file and write the outcomes: one JSON line per query with
the quality of both answers (0 to 1), their costs, and a label to train routers (1 = to the cloud). A journal stores
every answer: a second run repeats none.

With --job the answers are those of a finished job of Ianvs, and no model runs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from ianvs_specdec.benchmarks.files import positive
from ianvs_specdec.commands.arguments import check_out, check_shares, option, writing
from ianvs_specdec.commands.hyperparameters import add_model, model_of, read_hyperparameters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.progress import Progress
from ianvs_specdec.common.sampling import MIN_TEMPERATURE
from ianvs_specdec.plugin.processor import DatasetProcessor
from ianvs_specdec.routing.outcomes.collection import SIDES, Collected, collect, read_rows
from ianvs_specdec.routing.outcomes.job import outcomes_of_job
from ianvs_specdec.routing.outcomes.labels import LABELS, soft_labels, targets
from ianvs_specdec.routing.outcomes.quality import NAMES, Quality, quality
from ianvs_specdec.routing.outcomes.recorded import Floats, Outcomes, save_outcomes

PARTS = ("0", "0 to 0.5", "0.5", "0.5 to 1", "1")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, metavar="FILE", help='data file of Ianvs: {"question", "answer"} a line')
    source.add_argument("--job", type=Path, metavar="DIR", help="folder of a finished job in its workspace")
    add("-o", "--out", type=Path, required=True, metavar="FILE", help="outcomes to write (.jsonl)")
    for side in SIDES:
        add_model(parser, side)
    add("--journal", type=Path, metavar="DIR", help="folder of the journal (default: OUT.journal)")
    algorithm = "the job's algorithm, if its algorithms have different models or data"
    add("--algorithm", metavar="NAME", help=algorithm)
    add("--limit", type=positive, metavar="N", help="N questions, spread evenly over all")
    concurrency = "concurrent queries, for our engine, api and vllm"
    add("--concurrency", type=positive, default=1, metavar="N", help=concurrency)
    scorers = f"how answers are scored: {', '.join(NAMES)}"
    add("--quality", default="benchmark", metavar="NAME", help=scorers)
    item = "option of the benchmark's scorers, as in the dataset processor: judge_model, run_code, ...; repeatable"
    add("--scorer-set", action="append", default=[], metavar="K=V", help=item)
    add("--samples", type=positive, metavar="N", help="sampled answers per model, for soft labels")
    temperature = "temperature of the samples (default: the model's, or 1)"
    add("--temperature", type=float, metavar="T", help=temperature)
    add("--label", choices=LABELS, help="default hybrid; soft with --samples")
    add("--epsilon", type=float, default=0.0, help="hybrid: by how much better (0 to 1, default 0)")


def run(options: argparse.Namespace) -> int:
    _check(options)
    scorer = quality(options.quality)
    if options.job is not None:
        outcomes = outcomes_of_job(options.job, scorer, options.algorithm)
    else:
        outcomes = _run_models(options, scorer)
    _save(options, outcomes)
    return 0


def _check(options: argparse.Namespace) -> None:
    check_out(options.out)
    if not options.out.name.endswith(".jsonl"):
        raise UserError(f"--out {options.out}: outcomes are JSON lines, give a name that ends in .jsonl")
    check_shares(options, "epsilon")
    if options.temperature is not None and not MIN_TEMPERATURE <= options.temperature < 100:
        raise UserError(f"--temperature must be above 0, not {options.temperature:g}: greedy answers do not differ")
    if options.temperature is not None and not options.samples:
        raise UserError("--temperature is that of --samples; the answers' own is among the model's settings")
    if options.label == "soft" and not options.samples:
        raise UserError("--label soft needs several answers of each model: give --samples N")
    models = ("edge", "cloud", "edge_backend", "cloud_backend", "edge_set", "cloud_set")
    asking = (*models, "journal", "limit", "samples", "scorer_set")
    if options.job is not None and (given := [name for name in asking if getattr(options, name)]):
        raise UserError(f"{option(given[0])} is for running models; --job uses recorded answers")
    if options.data is not None and options.algorithm:
        raise UserError("--algorithm needs --job")


def _run_models(options: argparse.Namespace, scorer: Quality) -> Outcomes:
    settings = {side: model_of(options, side, model.check_hyperparameters) for side, model in SIDES.items()}
    scorers = read_hyperparameters(None, options.scorer_set, "--scorer-set")
    scorers.check(DatasetProcessor.check_hyperparameters)
    asked = read_rows(options.data, scorer, scorers.values, options.limit)
    journal = options.journal or options.out.with_suffix(".journal")
    each = len(asked.queries) * (1 + (options.samples or 0))
    progress = Progress("answers", dict.fromkeys(SIDES, each))
    try:
        collected = collect(
            asked,
            settings,
            scorer,
            journal,
            samples=options.samples or 0,
            temperature=options.temperature,
            concurrency=options.concurrency,
            on_answer=progress.step,
        )
    except BaseException:
        progress.close()
        if progress.done:
            print(f"{progress.done} answers are stored in {journal}: the next run resumes", file=sys.stderr)
        raise
    progress.close()
    _report_left_out(collected, len(asked.queries))
    if any(collected.unparsed.values()):
        parts = ", ".join(f"{count} of the {side}" for side, count in collected.unparsed.items())
        print(f"answers without a letter or number that could be read, which count as wrong: {parts}", file=sys.stderr)
    return collected.outcomes


def _report_left_out(collected: Collected, total: int) -> None:
    parts = [f"{count} without an answer of the {side}" for side, count in collected.failed.items() if count]
    parts += [f"{collected.unscored} without a score"] if collected.unscored else []
    if parts:
        left = total - len(collected.outcomes)
        reason = f"; the first: {collected.reason}" if collected.reason else ""
        print(f"{left} of {total} queries are left out: {', '.join(parts)}{reason}", file=sys.stderr)


def _save(options: argparse.Namespace, outcomes: Outcomes) -> None:
    kind = options.label or ("soft" if options.samples else "hybrid")
    extra: dict[str, Any] = {}
    try:
        values = targets(outcomes, kind, options.epsilon)
        extra["label"] = values.tolist()
        labels = _label_summary(values, kind, options.epsilon, outcomes)
    except UserError as error:
        # The outcomes may be usable with more queries or other labels.
        labels = f"no labels: {error}"
    with writing(options.out):
        save_outcomes(options.out, outcomes, **extra)
    better = [100 * float((sign * outcomes.gain > 0).mean()) for sign in (1, -1)]
    print(f"{options.out}: {len(outcomes)} queries")
    print(
        f"quality: edge {100 * outcomes.edge.mean():.2f} %, cloud {100 * outcomes.cloud.mean():.2f} %; "
        f"cloud better in {better[0]:.1f} %, edge better in {better[1]:.1f} %, equal in {100 - sum(better):.1f} %"
    )
    for side in SIDES:
        cost = getattr(outcomes, f"{side}_cost")
        if cost is not None:
            print(f"cost of 1,000 queries in the {side}: {1000 * cost.mean():.4g}")
    print(labels)


def _label_summary(values: Floats, kind: str, epsilon: float, outcomes: Outcomes) -> str:
    """Distribution of the labels, with the entropy of their values (in tenths) in bits."""
    shares = np.unique(np.round(values, 1), return_counts=True)[1] / len(values)
    entropy = float(-(shares * np.log2(shares)).sum())
    detail = f" (epsilon {epsilon:g})" if kind == "hybrid" else ""
    if kind == "soft":
        detail = f" (t = {soft_labels(outcomes)[1]:g})"
    places = np.select([values == 0, values < 0.5, values == 0.5, values < 1], range(4), 4)
    counts = np.bincount(places, minlength=5)
    parts = zip(PARTS, 100 * counts / len(values), strict=True)
    distribution = ", ".join(f"{name} in {share:.1f} %" for name, share in parts if share)
    return f"label {kind}{detail}: {distribution}; mean {values.mean():.3f}, entropy {entropy:.2f} bit"
