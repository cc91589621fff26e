"""Drive the same arrivals through speculation policies, or through a server that runs, and compare them at every rate.

With --settings, specdec serve is started once for each policy, on this machine. With --url, the server is anybody's.
OUT gets sweep.json and sweep.csv, load.png with matplotlib, and the raw files of every round in rounds/. A sweep that
was interrupted goes on when it is started again with the same options.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

from ianvs_specdec.commands.hyperparameters import read_hyperparameters
from ianvs_specdec.common.errors import UserError, install
from ianvs_specdec.load import plan as plans
from ianvs_specdec.load.patterns import PATTERNS, POISSON
from ianvs_specdec.load.plan import SweepPlan

OPTIONS = (
    ("--url", "URL", "a server with the OpenAI protocol that runs already"),
    ("--model", "NAME", "the model's name on the server at --url"),
    ("--api-key-env", "NAME", "environment variable with the key for the server at --url"),
    ("--settings", "FILE", "YAML file with a model's hyperparameters: it is served here, once for each policy"),
    ("--backend", "NAME", "the back end that drafts (default: the file's)"),
    ("--policies", "LIST", "speculation lengths to compare, such as fixed:0,fixed:4,goodput"),
    ("--concurrency", "N", "see specdec serve"),
    ("--queue", "N", "see specdec serve"),
    ("--rates", "LIST", "requests a second, such as 1,2,4"),
    ("--duration", "S", f"seconds of arrivals in each round (default {plans.DURATION:g})"),
    ("--repeats", "N", "rounds of each policy at each rate, in turn, each repeat with new arrivals (default 1)"),
    ("--arrivals", "KIND", f"{', '.join(PATTERNS)}, or a trace's file (Azure CSV, Mooncake JSONL); default {POISSON}"),
    ("--data", "FILE", "data file of Ianvs with the questions to ask"),
    ("--max-tokens", "N", f"longest answer (default {plans.MAX_TOKENS})"),
    ("--temperature", "T", "of the answers (default 0: greedy)"),
    ("--seed", "N", "of arrivals, questions, the policies' order and the intervals (default 0)"),
    ("--warmup", "S", "seconds at the begin of each round that are not counted (default 0)"),
    ("--timeout", "S", f"seconds for one answer (default {plans.TIMEOUT:g})"),
    ("--slo", "LIST", "objectives in seconds, such as ttft=0.5,tpot=0.05,latency=5"),
)
"""Each is a key of the YAML file, too, with underscores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", type=Path, metavar="FILE", help="YAML file with these options as keys")
    for option, metavar, text in OPTIONS:
        parser.add_argument(option, metavar=metavar, help=text)
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="one hyperparameter; repeatable")
    parser.add_argument("-o", "--out", type=Path, metavar="DIR", help="folder to write into")


def run(options: argparse.Namespace) -> int:
    plan, out = _asked(options)

    from ianvs_specdec.load import sweep
    from ianvs_specdec.load.servers import ServerDied
    from ianvs_specdec.load.tables import to_text

    try:
        results = sweep.run(plan, out)
    except ServerDied as error:
        kept = f"finished rounds are kept in {out}; start again with the same options to go on"
        print(f"specdec load: {error}; {kept}", file=sys.stderr)
        return 1
    files = [sweep.SWEEP, sweep.TABLE]
    if importlib.util.find_spec("matplotlib"):
        from ianvs_specdec.common.storage.replacing import replacing
        from ianvs_specdec.load.figure import to_png

        with replacing(out / sweep.FIGURE) as temporary:
            temporary.write_bytes(to_png(results))
        files.append(sweep.FIGURE)
    else:
        print(f"note: no {sweep.FIGURE}: {install('load')}", file=sys.stderr)
    for row in results:
        for note in row["notes"]:
            print(f"note: {row['policy']} at {row['rate']:g}/s: {note}", file=sys.stderr)
    print(to_text(results))
    print(f"{out}: {', '.join(files)}", file=sys.stderr)
    return 0


def _asked(options: argparse.Namespace) -> tuple[SweepPlan, Path]:
    """The options of the file, with those of the command line in place of the same ones there."""
    names = [name for name, _, _ in OPTIONS]
    named = {name: getattr(options, name[2:].replace("-", "_")) for name in names}
    chosen = read_hyperparameters(None, options.set, "--set").values
    given = read_hyperparameters(options.file, (), "", {**named, "--out": str(options.out) if options.out else None})
    values = dict(given.values)
    out = values.pop("out", None)
    if chosen:
        values["set"] = {**(values.get("set") or {}), **chosen}
    plan = given.taking(values).check(SweepPlan.parse)
    if not isinstance(out, str):
        raise UserError("where to? Give --out DIR: a folder for the results")
    return plan, Path(out)
