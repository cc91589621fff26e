"""``python -m bench`` (``make bench``): token/s and acceptance, ours beside transformers.

Methods in rows, all on one model and one set of prompts, greedy, one stream, the runs interleaved. Prints a table and
writes ``bench.json``, ``bench.csv`` and (with matplotlib) ``bench.svg`` into the output folder.
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
from ianvs_specdec.errors import UserError

CHAIN = ("depth=9", "length=confidence:0.4")


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    return command("bench", lambda: _run(options), options.out)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="target (default: the embedded cloud model with its heads)")
    add("--eagle", type=Path, action="append", default=[], metavar="DIR", help="EAGLE head of the target; repeatable")
    add("--medusa", type=Path, metavar="DIR", help="Medusa heads of the target")
    add("--draft", type=Path, metavar="DIR", help="smaller model with the same tokenizer")
    add("--datastore", type=Path, metavar="FILE", help="datastore for rest and suffix")
    add("--vllm", metavar="PYTHON", help="Python of an environment that has vLLM, to measure it as well")
    add("--llamacpp", metavar="PYTHON", help="the same of llama-cpp-python")
    add("--gguf-type", choices=("f32", "f16", "bf16", "q8_0"), help="weights of llama.cpp (as --dtype)")
    add(
        "--int8",
        action="store_true",
        help="our engine in 8-bit integers as well, alone and with EAGLE",
    )
    add("--methods", type=lambda text: text.split(","), metavar="A,B", help="only these of our methods")
    add("--set", action="append", default=[], metavar="METHOD.K=V", help="an option of a method; repeatable")
    add("--prompts", type=Path, action="append", metavar="FILE", help="questions; repeatable (the embedded sets)")
    add("--limit", type=int, default=24, metavar="N", help="prompts of each file, spread evenly over it (24)")
    add("--max-new-tokens", type=int, default=128, metavar="N")
    add("--repeats", type=int, default=3, metavar="R")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16", help="bfloat16 (default)")
    add("--device", default="cpu")
    add("--threads", type=int, metavar="N", help="CPU threads of torch")
    add("--out", type=Path, default=Path("runs") / "bench", metavar="DIR")
    return _with_defaults(parsed(parser, argv, "limit", "max_new_tokens", "repeats"))


def _with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Without a model of the user's own: the embedded one with everything that was made for it."""
    if options.model is None:
        models = EXAMPLE / "models"
        options.model = models / "cloud"
        options.eagle = options.eagle or [head for head in sorted(models.glob("cloud-eagle*")) if head.is_dir()]
        # As in the example: these heads know well how sure they are.
        options.set = [f"eagle {head.name} chain.{value}" for head in options.eagle for value in CHAIN] + options.set
        options.medusa = options.medusa or models / "cloud-medusa"
        options.draft = options.draft or models / "edge"
        options.datastore = options.datastore or next(iter(sorted(models.glob("*datastore*"))), None)
    return options


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from bench.contestants import AUTOREGRESSIVE, measure
    from bench.lineup import lineup, ratios
    from bench.prompts import read_requests
    from bench.statistics import speed_ratio, summarise

    model, tokenizer = _load(options)
    eos = model.generation_config.eos_token_id
    eos_ids = [eos] if isinstance(eos, int) else list(eos or [])
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    room = window - options.max_new_tokens
    requests = [r for file in options.prompts for r in read_requests(file, tokenizer, options.limit, room)]
    with ExitStack() as peers:
        positions = max(len(request.ids) for request in requests) + options.max_new_tokens
        entries = lineup(options, model, eos_ids, positions, peers)
        runs = measure(model, entries, requests, options.repeats)
        held = {
            entry.name: {"memory": entry.memory(), "resident": entry.resident(), "target": entry.target}
            for entry in entries
        }
    names = list(runs)
    near_ties = [set(repeats[0].near_ties) for repeats in runs[AUTOREGRESSIVE]]
    tasks = dict.fromkeys(request.task for request in requests)
    return {
        "model": str(options.model),
        "settings": {
            "max_new_tokens": options.max_new_tokens,
            "repeats": options.repeats,
            "dtype": options.dtype,
            "device": options.device,
        },
        "environment": environment(),
        "methods": [
            {
                **asdict(summarise(name, runs[name], runs[names[0]], near_ties)),
                "speedup": asdict(speed_ratio(runs[name], runs[AUTOREGRESSIVE])),
                **held[name],
            }
            for name in names
        ],
        **compared(options.prompts, [request.ids for request in requests], ratios(names), runs),
        "tasks": {
            task: {
                name: speed_ratio(*(_of_task(runs[which], requests, task) for which in (name, AUTOREGRESSIVE))).value
                for name in names
            }
            for task in tasks
        },
        "runs": {name: [[_row(run) for run in repeats] for repeats in per_prompt] for name, per_prompt in runs.items()},
    }


def _row(run: Any) -> dict[str, Any]:
    return {"tokens": len(run.token_ids), "seconds": run.seconds, "ttft": run.ttft, "forwards": run.forwards}


def _of_task(runs: list[Any], requests: list[Any], task: str) -> list[Any]:
    return [repeats for repeats, request in zip(runs, requests, strict=True) if request.task == task]


def _load(options: argparse.Namespace) -> tuple[Any, Any]:
    import torch
    from transformers import AutoTokenizer

    from ianvs_specdec.checkpoints.loading import CAUSAL, check_device, load

    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.model.is_dir():
        raise UserError(f"--model {options.model} is not a folder: give the folder of a Hugging Face model")
    check_device(options.device)
    what = f"--model {options.model}"
    model = load(CAUSAL, options.model, what=what, dtype=getattr(torch, options.dtype)).to(options.device)
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        tokenizer = None
    return model, tokenizer


if __name__ == "__main__":
    sys.exit(main())
