"""``specdec export gguf``: a model in the format of llama.cpp."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ianvs_specdec.commands.output import check_out, written
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf.gguf import TYPES, export_gguf


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="FORMAT")
    gguf = actions.add_parser("gguf", help="for llama.cpp: models of the Llama, Mistral and Qwen families")
    gguf.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    gguf.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of a Hugging Face model")
    gguf.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")
    gguf.add_argument("--type", choices=TYPES, default="f16", help="of the matrices (f16)")


def run(options: argparse.Namespace) -> int:
    if not options.model.is_dir():
        raise UserError(f"--model {options.model} is not a folder: give the folder of a Hugging Face model")
    check_out(options.out)
    started = time.perf_counter()
    with written(options.out):
        size = export_gguf(options.model, options.out, options.type)
    seconds = time.perf_counter() - started
    print(f"{options.out}: {options.type}, {size / 1e6:.1f} MB, {seconds:.1f} s", file=sys.stderr)
    return 0
