"""``specdec data``: benchmark files in, data files of Ianvs out; a job's answers in the format of other evaluators."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import Row, positive, sample_evenly, write_rows
from ianvs_specdec.benchmarks.judge_prompts import FASTCHAT_FILE, SHIPPED, find_official
from ianvs_specdec.benchmarks.registry import BENCHMARKS, Benchmark
from ianvs_specdec.benchmarks.rows import query_of
from ianvs_specdec.benchmarks.source import QUESTIONS, Inputs, Source
from ianvs_specdec.commands import opencompass, routellm
from ianvs_specdec.commands.arguments import check_out, writing
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    summary = "make a data file of a benchmark, from the Hugging Face hub or --from files"
    prepare = actions.add_parser("prepare", help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    names = prepare.add_subparsers(dest="benchmark", required=True, metavar="NAME")
    for name, benchmark in BENCHMARKS.items():
        text = (benchmark.__doc__ or "").strip()
        sub = _added(names, name, text.splitlines()[0], text, _prepare)
        _add_files(sub, benchmark.SOURCE)
        benchmark.add_arguments(sub)
    for name, summary, module in (
        ("opencompass", "write a job's answers as predictions of OpenCompass", opencompass),
        ("routellm", "write the records of RouteLLM as a file of outcomes", routellm),
    ):
        module.add_arguments(_added(actions, name, summary, module.__doc__, module.run))


def _added(
    actions: Any, name: str, summary: str, text: str | None, act: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser: argparse.ArgumentParser = actions.add_parser(name, help=summary, description=text, formatter_class=raw)
    parser.set_defaults(act=act)
    return parser


def _add_files(parser: argparse.ArgumentParser, source: Source) -> None:
    if source.parts:
        hub = f"; without it {source.repository} on the Hugging Face hub"
        other = hub if source.repository else " (needed: it is not on the hub)"
        text = f"files, folder or zip archive with what {source.home} has{other}"
        parser.add_argument("--from", dest="given", type=Path, nargs="+", default=[], metavar="FILE", help=text)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="data file to write (.jsonl)")
    parser.add_argument("--limit", type=positive, metavar="N", help="take N questions, spread evenly over all")


def run(options: argparse.Namespace) -> int:
    return int(options.act(options))


def _prepare(options: argparse.Namespace) -> int:
    check_out(options.out)
    benchmark: Benchmark = BENCHMARKS[options.benchmark]
    named = {part: getattr(options, part) for part in benchmark.SOURCE.parts if part != QUESTIONS}
    given = getattr(options, "given", ())
    rows = benchmark.rows(Inputs(benchmark.SOURCE, given, named), options)
    if twice := [name for name, times in Counter(query.id for query in _queries(rows)).items() if times > 1]:
        raise UserError(f"the question {twice[0]} is there twice: name one copy of the benchmark only")
    chosen = sample_evenly(rows, options.limit)
    with writing(options.out):
        write_rows(options.out, chosen)
    groups = len({query.group for query in _queries(chosen)})
    print(f"{options.out}: {len(chosen)} of {len(rows)} questions, {groups} group{'s'[: groups != 1]}")
    if any(query.scorer == "judge" for query in _queries(chosen)):
        print(_of_the_judge(given))
    return 0


def _of_the_judge(given: Sequence[Path]) -> str:
    """Which prompts will judge these rows, and how to have the official ones."""
    if (path := find_official(given)) is None:
        return (
            f"FastChat's {FASTCHAT_FILE} is not there, so a judge is asked by {SHIPPED.stem}: its scores are not "
            "comparable with published ones"
        )
    line = f"- judge_prompts: {{values: [{json.dumps(str(path), ensure_ascii=False)}]}}"
    return f"For scores comparable with published ones, add this to the dataset processor's hyperparameters:\n{line}"


def _queries(rows: list[Row]) -> list[Query]:
    return [query_of(row["question"], row["answer"], index) for index, row in enumerate(rows)]
