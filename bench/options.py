"""What the commands that measure a model's methods are told alike: model, heads, peers, prompts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench.command import EXAMPLE
from bench.prompts import Request, read_requests
from ianvs_specdec.backends.quantization import OWN
from ianvs_specdec.common import heap
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import ENGINES

CHAIN = ("depth=9", "length=confidence:0.4")


def shared(parser: argparse.ArgumentParser) -> None:
    """The options that these commands have in common."""
    add = parser.add_argument
    add("--model", type=Path, metavar="DIR", help="target (default: the embedded cloud model with its heads)")
    add("--eagle", type=Path, action="append", default=[], metavar="DIR", help="EAGLE head of the target; repeatable")
    add("--vllm", metavar="PYTHON", help="Python of an environment that has vLLM, to measure it as well")
    add("--llamacpp", metavar="PYTHON", help="the same of llama-cpp-python")
    types = ("f32", "f16", "bf16", "q8_0", "q4_0")
    add("--gguf-type", choices=types, help="weights of llama.cpp (as --dtype)")
    add(
        "--engine", choices=ENGINES, default="auto", help="what computes our rows (auto: the native step, where it can)"
    )
    add(
        "--quantization",
        type=quantizations,
        default=[],
        metavar="A,B",
        help="ours in int8, int4 or both as well, alone and with EAGLE",
    )
    add("--prompts", type=Path, action="append", metavar="FILE", help="questions; repeatable (the embedded sets)")
    add("--max-new-tokens", type=int, default=128, metavar="N")
    add("--repeats", type=int, default=3, metavar="R")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16", help="bfloat16 (default)")
    add("--device", default="cpu")
    add("--threads", type=int, metavar="N", help="CPU threads of each engine")


def quantizations(text: str) -> list[str]:
    """Names of our own quantizations, separated by commas."""
    names = text.split(",")
    if wrong := [name for name in names if name not in OWN]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not one of {', '.join(OWN)}")
    return names


def with_defaults(options: argparse.Namespace) -> argparse.Namespace:
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


def load(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokenizer (None without one)."""
    import torch
    from transformers import AutoTokenizer

    from ianvs_specdec.models import loading

    if options.threads:
        torch.set_num_threads(options.threads)
    if not options.model.is_dir():
        raise UserError(f"--model {options.model} is not a folder: give the folder of a Hugging Face model")
    loading.check_device(options.device)
    what = f"--model {options.model}"
    model = loading.load(loading.CAUSAL, options.model, what=what, dtype=getattr(torch, options.dtype)).to(
        options.device
    )
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        tokenizer = None
    heap.keep()
    return model, tokenizer


def eos_of(model: Any) -> list[int]:
    eos = model.generation_config.eos_token_id
    return [eos] if isinstance(eos, int) else list(eos or [])


def requests_of(options: argparse.Namespace, model: Any, tokenizer: Any) -> list[Request]:
    """``options.limit`` questions of each file that leave room for an answer."""
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    room = window - options.max_new_tokens
    return [request for file in options.prompts for request in read_requests(file, tokenizer, options.limit, room)]
