"""``specdec decode``: decode prompts with one method, write outputs and step traces (docs/decoding.md).

Optional keys of a prompt: ``prediction`` (ids or text, for method predicted_output) and ``task`` (a name, for length
goodput). The prefill pass is not a step; it yields the first generated token. Lookahead with start=official has none.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ianvs_specdec import drafters, lengths
from ianvs_specdec.backends.quantization import BUILT_IN, built_in, loading_arguments
from ianvs_specdec.commands import remote_decode
from ianvs_specdec.commands.decode_io import (
    method_of,
    print_summary,
    read_prompts,
    row_of,
    sampling_of,
    tokenize,
    tokenizer_of,
    write,
)
from ianvs_specdec.commands.hyperparameters import add_template, folder_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import table
from ianvs_specdec.common.types import ENGINES

if TYPE_CHECKING:
    from ianvs_specdec.engine import Target, TokenTree

WARM_UP_TOKENS = 8
EMPTY_TOKENS = 2
"""Maximum tokens of an empty output: the end, or a line break and the end."""
DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _methods()
    add, path = parser.add_argument, partial(parser.add_argument, type=Path)
    path("--model", metavar="DIR", help="folder of a Hugging Face causal LM, or a GGUF file")
    method = parser.add_mutually_exclusive_group(required=True)
    method.add_argument("--method", metavar="NAME", help="drafting method, see below")
    method.add_argument("--drafter", metavar="FILE:CLASS", help="custom drafter, path/to/file.py:Class")
    path("--head", metavar="DIR", help="folder of the draft head, for methods with a head")
    path("--draft", metavar="DIR", help="folder of the draft model, for draft_model")
    add("--set", action="append", default=[], metavar="K=V", help="an option of the method; repeatable")
    path("--prompts", required=True, metavar="FILE", help='JSONL: {"prompt": [ids] | "text"}')
    path("--out", required=True, metavar="FILE", help="JSONL to write")
    add("--chat", action="store_true", help="apply the model's chat template to text prompts")
    add("--trace", action="store_true", help="write the verified tree of every step")
    add(
        "--max-new-tokens", type=int, default=128, metavar="N", help="maximum number of tokens per output (default 128)"
    )
    add("--temperature", type=float, default=0.0, metavar="T", help="0 = greedy (default)")
    add("--top-p", type=float, default=1.0, metavar="P", help="1 = off (default)")
    add("--top-k", type=int, default=0, metavar="K", help="0 = off (default)")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="1 = none (default)")
    add("--seed", type=int, default=0, metavar="S", help="prompt i (from 0) is sampled with seed S + i (default 0)")
    add("--dtype", choices=DTYPES, default="float32", help="type of the weights (default float32)")
    add("--quantization", choices=("none", *BUILT_IN), default="none", help="quantization of the weights")
    add("--engine", choices=ENGINES, default="auto", help="implementation of the model (default: the fastest)")
    add("--device", default="cpu", help="cpu (default), cuda, cuda:1, mps ...")
    add("--threads", type=int, metavar="N", help="CPU threads (default: torch's)")
    add_template(parser)
    remote_decode.add_arguments(parser)


def run(options: argparse.Namespace) -> int:
    if options.verifier is not None:
        return remote_decode.run(options)
    if options.model is None:
        raise UserError(
            "--model is missing: give the folder of the model, or the address of a verifier with --verifier"
        )
    # Before the model is loaded, to report invalid arguments early.
    method, settings = method_of(options)
    rule, length = str(settings.get("acceptance", "rejection")), settings.get("length", drafters.default_length(method))
    # Separate pairs: drafter and length must not learn from the warm-up.
    warm, measured = ((drafters.create(method, settings), lengths.create(str(length))) for _ in range(2))
    sampling = sampling_of(options)
    prompts = read_prompts(options)
    options.model = folder_of(options.model)
    from ianvs_specdec.engine import decode

    target, eos_ids = _load(options)
    tokenizer = tokenizer_of(options.model)
    requests = tokenize(options, prompts, len(target.embedding), target.window, tokenizer)

    warm_up = replace(sampling, max_tokens=min(WARM_UP_TOKENS, sampling.max_tokens))
    decode(target, *warm, requests[0].prompt, warm_up, eos_ids=eos_ids, rule=rule)

    rows, results = [], []
    for i, request in enumerate(requests):
        trees: list[TokenTree] | None = [] if options.trace else None
        result = decode(
            target,
            *measured,
            request.prompt,
            replace(sampling, seed=sampling.seed + i),
            eos_ids=eos_ids,
            trace_trees=trees,
            rule=rule,
            prediction=request.prediction,
            task=request.task,
        )
        rows.append(row_of(request.prompt, result, trees, tokenizer, request.task))
        results.append(result)
    write(options.out, rows)
    print_summary(results)
    if all(len(result.token_ids) <= EMPTY_TOKENS and result.finish_reason == "stop" for result in results):
        unused = not options.chat and getattr(tokenizer, "chat_template", None)
        advice = ": the model has a chat template, which --chat puts the prompts through" if unused else ""
        print(f"specdec decode: warning: every output ended at once{advice}", file=sys.stderr)
    return 0


def _methods() -> str:
    """Every method with its options, for the help."""
    lines = ["methods, and the options that --set takes (their defaults in brackets):"]
    for name, method in drafters.METHODS.items():
        # The method of --drafter has the options of its class.
        if name != "own":
            lines.append(f"  {name}: {method.about}")
            rows = (row for row in table(method.options) if row[0] != "acceptance")
            lines += [f"    {key}: {wanted} ({default}); {text}" for key, wanted, default, text in rows]
    return "\n".join([*lines, f"  all methods have acceptance: one of {', '.join(drafters.RULES)}"])


def _load(options: argparse.Namespace) -> tuple[Target, list[int]]:
    import torch

    from ianvs_specdec.backends.base import check_threads
    from ianvs_specdec.models.loading import CAUSAL, check_device, load
    from ianvs_specdec.targets.registry import create_target

    if options.threads is not None:
        check_threads(options.threads, "--threads")
        torch.set_num_threads(options.threads)
    check_device(options.device)
    loading_arguments(built_in(options.quantization), options.model, options.device)
    what = f"--model {options.model}"
    model = load(CAUSAL, options.model, what=what, dtype=getattr(torch, options.dtype)).to(options.device)
    eos = model.generation_config.eos_token_id
    target = create_target(model, consume=True, quantization=built_in(options.quantization), engine=options.engine)
    return target, [eos] if isinstance(eos, int) else list(eos or [])
