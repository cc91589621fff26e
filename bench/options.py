"""Options of the commands that measure a model's methods: model, heads, peers, prompts."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.command import EXAMPLE, SETS, words
from bench.prompts import Request, read_requests
from ianvs_specdec.backends.quantization import BUILT_IN
from ianvs_specdec.benchmarks.files import positive
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
    add("--engine", choices=ENGINES, default="auto", help="what computes our rows (auto: the native step, if it can)")
    more = "ours in int8, int4 or both as well, alone and with EAGLE"
    add("--quantization", type=words(*BUILT_IN), default=[], metavar="A,B", help=more)
    add("--prompts", type=Path, action="append", metavar="FILE", help="questions; repeatable (the embedded sets)")
    add("--set", action="append", default=[], metavar="METHOD.K=V", help="an option of a method; repeatable")
    add("--max-new-tokens", type=positive, default=128, metavar="N")
    add("--repeats", type=positive, default=3, metavar="R")
    add("--dtype", choices=("float32", "bfloat16", "float16"), default="bfloat16", help="bfloat16 (default)")
    add("--device", default="cpu")
    add("--threads", type=int, metavar="N", help="CPU threads of each engine")
    add("--out", type=Path, default=Path("runs") / "bench", metavar="DIR", help="(runs/bench)")


def with_defaults(options: argparse.Namespace) -> argparse.Namespace:
    """Without a model of the user's own: the embedded one with everything that was made for it."""
    options.prompts = options.prompts or list(SETS)
    if options.model is None:
        models = EXAMPLE / "models"
        options.model = models / "cloud"
        options.eagle = options.eagle or [head for head in sorted(models.glob("cloud-eagle*")) if head.is_dir()]
        # As in the example: these heads know well how sure they are.
        options.set = [f"eagle {head.name} chain.{value}" for head in options.eagle for value in CHAIN] + options.set
        options.medusa = options.medusa or models / "cloud-medusa"
        options.dflash = options.dflash or models / "cloud-dflash"
        options.draft = options.draft or models / "edge"
        options.datastore = options.datastore or next(iter(sorted(models.glob("*datastore*"))), None)
    return options


def override(item: str) -> tuple[str, str, Any]:
    """Method (or row), option and value of ``--set METHOD.key=value``."""
    place, equals, text = item.partition("=")
    name, dot, key = place.rpartition(".")
    if not (equals and dot and name):
        raise UserError(f"--set {item}: write it as --set METHOD.key=value")
    try:
        return name, key, json.loads(text)
    except ValueError:
        return name, key, text


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
    dtype = getattr(torch, options.dtype)
    model = loading.load(loading.CAUSAL, options.model, what=f"--model {options.model}", dtype=dtype)
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):
        tokenizer = None
    heap.keep()
    return model.to(options.device), tokenizer


def eos_of(model: Any) -> list[int]:
    eos = model.generation_config.eos_token_id
    return [eos] if isinstance(eos, int) else list(eos or [])


def requests_of(options: argparse.Namespace, model: Any, tokenizer: Any) -> list[Request]:
    """``options.limit`` questions of each file that leave room for an answer."""
    window = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1 << 20
    room = window - options.max_new_tokens
    return [request for file in options.prompts for request in read_requests(file, tokenizer, options.limit, room)]
