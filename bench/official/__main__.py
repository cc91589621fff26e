"""``python -m bench.official`` (``make bench-official``): ours beside eagle-llm 1.2.1 and lade 0.0.2, unpatched.

All on the same model, head and prompts, greedy, one stream, the same number of threads, in turn: outputs, tokens per
verification step (tau) and token/s. The packages run as the back ends of their names run them. Prints a table and
writes ``bench.json`` and ``bench.csv`` into the output folder, where the packages' environments are expected, too
(``venv-eagle``, ``venv-lade``).
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.command import EXAMPLE, command, compared, parsed
from bench.environment import environment
from bench.official.process import Driver, Package
from bench.official.rows import PACKAGES, Row, pairs, rows
from ianvs_specdec.common.errors import UserError

HERE = Path(__file__).resolve().parent
MARGIN = 160
"""Positions that the packages use beyond the output: one step's tree and window."""


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    return command("bench.official", lambda: _run(options), options.out)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.official", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    models = EXAMPLE / "models"
    parser.add_argument("--model", type=Path, default=models / "cloud", metavar="DIR")
    parser.add_argument("--eagle", type=Path, default=models / "cloud-eagle", metavar="DIR", help="an EAGLE-1/2 head")
    parser.add_argument("--packages", nargs="+", choices=tuple(PACKAGES), default=tuple(PACKAGES), help="(both)")
    parser.add_argument("--prompts", type=Path, action="append", metavar="FILE", help="repeatable (the embedded sets)")
    parser.add_argument("--limit", type=int, default=8, metavar="N", help="prompts of each file, evenly spread (8)")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="R")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="CPU threads of torch, on all sides (2)")
    parser.add_argument("--out", type=Path, default=Path("runs") / "official", metavar="DIR", help="(runs/official)")
    return parsed(parser, argv, "limit", "max_new_tokens", "repeats", "threads")


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from bench.official.measure import measure
    from bench.prompts import read_prompts
    from ianvs_specdec.backends.official.layout import old_head, old_model

    out = options.out.resolve()
    pythons = {package: _python(out, package) for package in options.packages}
    chosen = rows(options.packages, options.eagle)
    tokenizer, eos_ids, window = _read_model(options.model)
    room = window - options.max_new_tokens - MARGIN
    prompts = [ids for file in options.prompts for ids in read_prompts(file, tokenizer, options.limit, room)]
    shape = ["--dtype", options.dtype, "--threads", str(options.threads)]
    ours = [sys.executable, str(HERE / "ours_driver.py"), "--model", str(options.model), *shape]
    arguments = {"model": str(old_model(options.model, out / "model", eos_ids)), "dtype": options.dtype}
    with ExitStack() as stack:
        own = Driver("ours", ours, out / "ours.log", options.threads)
        drivers: dict[str, Driver | Package] = {"ours": stack.enter_context(own)}
        for package, python in pythons.items():
            head = {"head": str(old_head(options.eagle, out / "head"))} if package == "eagle" else {}
            worker = Package(PACKAGES[package], python, {**arguments, **head}, options.threads)
            drivers[package] = stack.enter_context(worker)
        for driver in drivers.values():
            driver.start()
        runs = measure(chosen, drivers, prompts, options.repeats, options.max_new_tokens, eos_ids)
        versions = {name: driver.versions for name, driver in drivers.items()}
    return _report(options, prompts, chosen, runs, versions)


def _python(out: Path, package: str) -> Path:
    """The interpreter of a package's environment."""
    folder = out / f"venv-{package}"
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        others = " ".join(name for name in PACKAGES if name != package)
        raise UserError(f"{folder} is missing: `make bench-official` makes it; or leave it out: --packages {others}")
    return python


def _read_model(folder: Path) -> tuple[Any, list[int], int]:
    """Tokenizer (None without), end-of-sequence ids and context window of a model folder."""
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read --model {folder}: {error}") from error
    try:
        eos = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    except OSError:
        eos = config.eos_token_id
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        tokenizer = None
    return tokenizer, [eos] if isinstance(eos, int) else list(eos or []), config.max_position_embeddings


def _report(
    options: argparse.Namespace, prompts: list[list[int]], chosen: list[Row], runs: Any, versions: dict[str, Any]
) -> dict[str, Any]:
    """The report in the shape of ``bench``'s."""
    from bench.statistics import speed_ratio, summarise

    reference = runs[chosen[0].name]
    near_ties = [set(repeats[0].near_ties) for repeats in reference]
    libraries = ", ".join(f"{version['transformers']} ({name})" for name, version in versions.items())
    return {
        "model": str(options.model),
        "settings": {"max_new_tokens": options.max_new_tokens, "repeats": options.repeats, "dtype": options.dtype},
        "environment": {**environment(), "threads": options.threads, "transformers": libraries},
        "versions": versions,
        "methods": [
            {
                **asdict(summarise(row.name, runs[row.name], reference, near_ties)),
                "speedup": asdict(speed_ratio(runs[row.name], reference)),
            }
            for row in chosen
        ],
        **compared(options.prompts, prompts, pairs(chosen), runs),
        "runs": {
            name: [[_run_row(run) for run in repeats] for repeats in per_prompt] for name, per_prompt in runs.items()
        },
    }


def _run_row(run: Any) -> dict[str, Any]:
    return {
        "tokens": len(run.token_ids),
        "seconds": run.seconds,
        "emitted": run.emitted,
    }


if __name__ == "__main__":
    sys.exit(main())
