"""``specdec export gguf`` and ``specdec export hf``: a Hugging Face folder as a GGUF file, and back."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from ianvs_specdec.commands.arguments import check_out, writing
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf import importing
from ianvs_specdec.models.gguf.exporting import TYPES, export_gguf


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="FORMAT")
    gguf = actions.add_parser("gguf", help="for llama.cpp: a folder of a family of the native step, without experts")
    gguf.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of a Hugging Face model")
    gguf.add_argument("--out", type=Path, required=True, metavar="FILE", help="file to write")
    gguf.add_argument("--type", choices=TYPES, default="f16", help="of the matrices (f16)")
    hf = actions.add_parser("hf", help="for all other back ends: a GGUF file, with its weights dequantized")
    hf.add_argument("--model", type=Path, required=True, metavar="FILE", help="GGUF file")
    hf.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to make")
    hf.add_argument("--type", choices=importing.TYPES, default="bfloat16", help="of the weights (bfloat16)")


def run(options: argparse.Namespace) -> int:
    started = time.perf_counter()
    size = (_to_gguf if options.action == "gguf" else _to_folder)(options)
    seconds = time.perf_counter() - started
    print(f"{options.out}: {options.type}, {size / 1e6:.1f} MB, {seconds:.1f} s", file=sys.stderr)
    return 0


def _to_folder(options: argparse.Namespace) -> int:
    if not options.model.is_file():
        raise UserError(f"--model {options.model} is not a file: give a GGUF file")
    if not options.out.parent.is_dir() or options.out.exists():
        raise UserError(f"--out {options.out}: give a folder that does not exist yet, in one that does")
    with writing(options.out):
        return importing.import_gguf(options.model, options.out, options.type)


def _to_gguf(options: argparse.Namespace) -> int:
    if not options.model.is_dir():
        raise UserError(f"--model {options.model} is not a folder: give the folder of a Hugging Face model")
    check_out(options.out)
    with writing(options.out):
        return export_gguf(options.model, options.out, options.type)
