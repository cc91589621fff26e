"""``specdec profile``: measure a cost table, the time of a model's steps and drafts on this machine."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ianvs_specdec.commands.arguments import check_out, writing
from ianvs_specdec.commands.hyperparameters import read_hyperparameters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.plugin.settings import ModelSettings

SECONDS = 60.0
MAX_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--settings", type=Path, metavar="FILE", help="YAML file with a model's hyperparameters")
    add("--set", action="append", default=[], metavar="K=V", help="one hyperparameter; repeatable")
    add("--model", metavar="DIR", help="folder in Hugging Face format, GGUF file, or a name on the hub")
    add("--backend", metavar="NAME", help="the back end that drafts (default autoregressive)")
    seconds = f"maximum time of the measurement (default {SECONDS:g})"
    add("--seconds", type=float, default=SECONDS, metavar="S", help=seconds)
    add("--out", required=True, type=Path, metavar="FILE", help="cost table to write (JSON)")


def run(options: argparse.Namespace) -> int:
    check_out(options.out)
    if not 0 < options.seconds <= MAX_SECONDS:
        raise UserError(f"--seconds must be more than 0, at most {MAX_SECONDS:g}, not {options.seconds:g}")
    given = read_hyperparameters(
        options.settings, options.set, "--set", {"--model": options.model, "--backend": options.backend}
    )
    if not given.values.get("model"):
        raise UserError("no model: give --model, or --settings with a file that has the key model")
    # Measure this machine, not an emulated one.
    values = {name: value for name, value in given.values.items() if not name.startswith("emulate")}
    settings: ModelSettings = replace(given, values=values).check(ModelSettings.parse)
    llm: Any = settings.llm(settings.backend)
    if not hasattr(llm, "profile"):
        raise UserError(f"the back end {settings.backend} does not run in our engine, which is measured: name another")
    with llm:
        costs = llm.profile(options.seconds)
        hardware = llm.hardware()
    machine = ", ".join(str(hardware[name]) for name in ("processor", "device") if hardware.get(name))
    how = f"engine {llm.engine}, {llm.options.dtype}"
    note = f"measured by specdec profile with {hardware.get('threads')} threads, {how}"
    costs = replace(costs, machine=machine, model=Path(settings.general.model).name, method=llm.method, note=note)
    with writing(options.out):
        write_atomically(options.out, json.dumps(costs.to_json(), indent=1) + "\n")
    step = costs.step_seconds(1, 0, 1)
    print(f"{options.out}: a step of one request takes {1000 * step:.3g} ms on {machine}")
    return 0
