"""Who takes part: every method that has what it needs, each with the settings it is best at, and its peers."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.contestants import AUTOREGRESSIVE, GENERATE, Contestant, Run, ours, transformers_generate
from bench.official.process import Driver
from bench.prompts import Request
from ianvs_specdec import drafters
from ianvs_specdec.decoding import target_of
from ianvs_specdec.errors import UserError, unknown

LOOKUP, ASSISTED = "transformers prompt lookup", "transformers assisted"
VLLM_DRIVER = Path(__file__).parent / "official" / "vllm_driver.py"
DRAFT_FREE = ("prompt_lookup", "lookahead", "rest", "suffix", "recycling")


def lineup(options: argparse.Namespace, model: Any, eos_ids: list[int], peers: ExitStack) -> list[Contestant]:
    """The rows of the table; the first is the output all others are compared with. ``peers`` ends the processes of
    those that need one of their own."""
    limit = options.max_new_tokens
    target = target_of(model)
    entries = [
        transformers_generate(model, "generate", eos_ids, limit),
        *(ours(target, name, settings, eos_ids, limit) for name, settings in _methods(options)),
    ]
    draft = int(drafters.default_length("prompt_lookup").partition(":")[2])
    entries.append(transformers_generate(model, "prompt lookup", eos_ids, limit, prompt_lookup_num_tokens=draft))
    if options.draft:
        assistant = _assistant(options.draft, model)
        entries.append(transformers_generate(model, "assisted", eos_ids, limit, assistant_model=assistant))
    if options.vllm:
        entries.append(_vllm(options, None, eos_ids, peers))
        entries += [_vllm(options, head, eos_ids, peers) for head in options.eagle]
    return entries


def _vllm(options: argparse.Namespace, head: Path | None, eos_ids: list[int], peers: ExitStack) -> Contestant:
    """vLLM in a process of the environment that has it, with a head or token by token."""
    name = "vLLM" if head is None else f"vLLM {head.name}"
    threads = options.threads or os.cpu_count() or 1
    command = [options.vllm, str(VLLM_DRIVER), "--model", str(options.model), "--dtype", options.dtype]
    command += ["--threads", str(threads), *([] if head is None else ["--head", str(head)])]
    driver = peers.enter_context(Driver(name, command, options.out / f"{name.replace(' ', '-')}.log", threads))
    driver.start()

    def run(request: Request) -> Run:
        answer = driver.ask({"prompt": request.ids, "max_new_tokens": options.max_new_tokens, "eos_ids": eos_ids})
        return Run(answer["output"], answer["seconds"], answer["steps"] + 1)

    return Contestant(name, run)


def ratios(names: list[str]) -> list[tuple[str, str]]:
    """Pairs whose speed ratio is printed besides the speed-up over our autoregressive decoding."""
    pairs = [(AUTOREGRESSIVE, GENERATE)]
    pairs += [(name, GENERATE) for name in names if name.startswith("ours eagle")]
    free = [f"ours {method}" for method in DRAFT_FREE]
    pairs += [(name, LOOKUP) for name in names if name.startswith(tuple(free))]
    pairs += [(f"ours eagle {name[5:]} chain", name) for name in names if name.startswith("vLLM ")]
    pairs += [(name, ASSISTED) for name in names if name.startswith("ours draft_model")]
    return [(method, baseline) for method, baseline in pairs if method in names and baseline in names]


def _methods(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of the row (method first, then what tells it apart) and options of the method."""
    given = [("none", {}), ("prompt_lookup", {}), ("lookahead", {}), ("recycling", {})]
    if options.datastore:
        given += [("rest", {"datastore": str(options.datastore)}), ("suffix", {"datastore": str(options.datastore)})]
    else:
        given.append(("suffix", {}))
    if options.draft:
        given.append(("draft_model", {"draft": str(options.draft)}))
    if options.medusa:
        given.append(("medusa", {"head": str(options.medusa)}))
    for head in options.eagle:
        given += [
            (f"eagle {head.name} chain", {"head": str(head), "tree": "chain"}),
            (f"eagle {head.name} dynamic", {"head": str(head), "tree": "dynamic"}),
        ]
    chosen = options.methods or [name for name, _ in given]
    known = {name.partition(" ")[0] for name, _ in given} | {name for name, _ in given}
    for name in chosen:
        if name not in known:
            raise unknown("method to measure", name, known)
    overrides = [_override(item) for item in options.set]
    for name, settings in given:
        method = name.partition(" ")[0]
        if method == "none" or {name, method} & set(chosen):
            own = {key: value for scope, key, value in overrides if scope in (name, method)}
            yield name, {**settings, **own}


def _override(item: str) -> tuple[str, str, Any]:
    place, equals, text = item.partition("=")
    name, dot, key = place.rpartition(".")
    if not (equals and dot and name):
        raise UserError(f"--set {item}: write it as --set METHOD.key=value")
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    return name, key, value


def _assistant(folder: Path, model: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype, local_files_only=True).to(model.device)
