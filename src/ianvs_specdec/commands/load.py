"""``specdec load``: the same arrivals for several speculation policies, or for a running server (docs/load.md)."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

from ianvs_specdec.commands.hyperparameters import add_settings, read_hyperparameters, settings_of
from ianvs_specdec.common.errors import UserError, install_command
from ianvs_specdec.load.plan import SweepPlan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", type=Path, metavar="FILE", help="YAML file with these options as keys")
    add_settings(parser, SweepPlan, "set")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="one hyperparameter; repeatable")
    parser.add_argument("-o", "--out", metavar="DIR", help="folder to write into")


def run(options: argparse.Namespace) -> int:
    plan, out = _plan(options)

    from ianvs_specdec.load import sweep
    from ianvs_specdec.load.output import to_text
    from ianvs_specdec.load.servers import ServerDied

    try:
        results = sweep.run(plan, out)
    except ServerDied as error:
        advice = f"finished rounds are stored in {out}; run the same command again to continue"
        print(f"specdec load: {error}; {advice}", file=sys.stderr)
        return 1
    files = [sweep.SWEEP, sweep.TABLE]
    if importlib.util.find_spec("matplotlib"):
        from ianvs_specdec.common.storage.atomic import replacing
        from ianvs_specdec.load.output import to_png

        with replacing(out / sweep.FIGURE) as temporary:
            temporary.write_bytes(to_png(results))
        files.append(sweep.FIGURE)
    else:
        print(f"note: no {sweep.FIGURE}: {install_command('load')}", file=sys.stderr)
    for row in results:
        for note in row["notes"]:
            print(f"note: {row['policy']} at {row['rate']:g}/s: {note}", file=sys.stderr)
    print(to_text(results))
    print(f"{out}: {', '.join(files)}", file=sys.stderr)
    return 0


def _plan(options: argparse.Namespace) -> tuple[SweepPlan, Path]:
    """The options of the file, overridden by those of the command line."""
    chosen = read_hyperparameters(None, options.set, "--set").values
    named = {**settings_of(options, SweepPlan), "--set": None, "--out": options.out}
    given = read_hyperparameters(options.file, (), "", named)
    values = dict(given.values)
    out = values.pop("out", None)
    if chosen:
        values["set"] = {**(values.get("set") or {}), **chosen}
    plan = replace(given, values=values).check(SweepPlan.parse)
    if not isinstance(out, str):
        raise UserError("--out DIR is missing: the folder for the results")
    return plan, Path(out)
