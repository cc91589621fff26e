"""``specdec report``: write a workspace of Ianvs as an HTML page, JSON and CSV."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import chain
from pathlib import Path

from ianvs_specdec.common.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add, path = parser.add_argument, partial(parser.add_argument, type=Path)
    path("workspace", metavar="WORKSPACE", help="folder of a job, or of several jobs")
    path("--out", metavar="FILE.html", help="page to write (default: report.html in the workspace)")
    path("--json", metavar="FILE", help="also write all data of the page as JSON")
    path("--csv", metavar="FILE", help="also write the leaderboard with all columns as CSV")
    queries = "queries per test case shown one by one (default: 200); figures include all queries"
    add("--queries", type=int, default=200, metavar="N", help=queries)
    load = "also show the results of `specdec load` in DIR (those in the jobs' folders are always shown); repeatable"
    path("--load", action="append", default=[], metavar="DIR", help=load)


def run(options: argparse.Namespace) -> int:
    if options.queries < 0:
        raise UserError(f"--queries must be 0 or more, not {options.queries}")
    out = options.out or options.workspace / "report.html"
    for path in filter(None, (options.out, options.json, options.csv)):
        if not path.parent.is_dir():
            raise UserError(f"cannot write {path}: the folder {path.parent} does not exist")

    from ianvs_specdec.common.storage.atomic import write_atomically
    from ianvs_specdec.report.collect import collect, to_csv
    from ianvs_specdec.report.page import to_html, to_json

    document = collect(options.workspace, options.queries, options.load)
    page = to_html(document)
    try:
        write_atomically(out, page)
    except OSError as error:
        advice = "" if options.out else "; --out FILE.html writes the page elsewhere"
        raise UserError(f"cannot write {out}: {error.strerror or error}{advice}") from error
    if options.json:
        write_atomically(options.json, to_json(document) + "\n")
    if options.csv:
        write_atomically(options.csv, to_csv(document))
    cases = document["cases"]
    answered, shown = sum(case["answered"] for case in cases), sum(len(case["entries"]) for case in cases)
    cases_text, jobs_text, answers_text = (
        f"{count} {noun}{'s'[: count != 1]}"
        for count, noun in ((len(cases), "test case"), (len(document["jobs"]), "job"), (answered, "answer"))
    )
    print(
        f"{out}: {cases_text} of {jobs_text}, {answers_text} "
        f"({shown} to look at one by one), {out.stat().st_size / 1e6:.1f} MB",
        file=sys.stderr,
    )
    for note in [*document["notes"], *chain.from_iterable(document["told"].values())]:
        print(f"note: {note}", file=sys.stderr)
    return 0
