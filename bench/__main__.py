"""``python -m bench`` (``make bench``): token/s and acceptance, ours beside transformers.

Methods in rows, all on one model and one set of prompts, greedy, one stream, the runs interleaved. Prints a table and
writes ``bench.json`` and ``bench.csv`` into the output folder.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.environment import environment
from bench.report import table, write
from ianvs_specdec.errors import UserError

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "cloud-edge-speculative-decoding"


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        report = _run(options)
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130
    print(table(report))
    for path in write(options.out, report):
        print(f"written: {path}")
    return 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    knowledge = EXAMPLE / "dataset" / "knowledge" / "test.jsonl"
    parser.add_argument("--model", type=Path, default=EXAMPLE / "models" / "cloud", metavar="DIR")
    parser.add_argument("--prompts", type=Path, default=knowledge, metavar="FILE")
    parser.add_argument("--limit", type=int, default=24, metavar="N", help="prompts, spread evenly over the file (24)")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--repeats", type=int, default=3, metavar="R")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of torch")
    parser.add_argument("--out", type=Path, default=Path("runs") / "bench", metavar="DIR")
    options = parser.parse_args(argv)
    for name in ("limit", "max_new_tokens", "repeats"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    return options


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from bench.contestants import RATIOS, contestants, measure
    from bench.prompts import read_prompts
    from bench.statistics import speed_ratio, summarise

    model, tokenizer = _load(options)
    eos = model.generation_config.eos_token_id
    eos_ids = [eos] if isinstance(eos, int) else list(eos or [])
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    prompts = read_prompts(options.prompts, tokenizer, options.limit, window - options.max_new_tokens)
    runs = measure(
        model, contestants(model, eos_ids, options.max_new_tokens), prompts, options.repeats, progress=_progress
    )
    names = list(runs)
    near_ties = [set(repeats[0].near_ties) for repeats in runs["ours autoregressive"]]
    return {
        "model": str(options.model),
        "prompts": {"file": str(options.prompts), "count": len(prompts), "tokens": sum(map(len, prompts))},
        "settings": {
            "max_new_tokens": options.max_new_tokens,
            "repeats": options.repeats,
            "dtype": options.dtype,
            "device": options.device,
        },
        "environment": environment(),
        "methods": [asdict(summarise(name, runs[name], runs[names[0]], near_ties)) for name in names],
        "ratios": [
            {"method": method, "baseline": baseline, **asdict(speed_ratio(runs[method], runs[baseline]))}
            for method, baseline in RATIOS
        ],
        "runs": {
            name: [
                [{"tokens": len(run.token_ids), "seconds": run.seconds, "forwards": run.forwards} for run in repeats]
                for repeats in per_prompt
            ]
            for name, per_prompt in runs.items()
        },
    }


def _load(options: argparse.Namespace) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.model.is_dir():
        raise UserError(f"--model {options.model} is not a folder: give the folder of a Hugging Face model")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            options.model, dtype=getattr(torch, options.dtype), local_files_only=True
        ).to(options.device)
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        raise UserError(f"cannot load --model {options.model} on {options.device}: {error}") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    except (OSError, ValueError):
        tokenizer = None
    return model.eval(), tokenizer


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done + 1 == total else ""
        print(f"\r{done + 1}/{total} prompts", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
