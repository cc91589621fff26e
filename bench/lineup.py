"""Who takes part: every method that has what it needs, each with the settings it is best at, and its peers."""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import peers
from bench.contestants import AUTOREGRESSIVE, GENERATE, Contestant, Run, ours, transformers_generate
from bench.official.process import Driver
from bench.peers import LLAMACPP
from bench.prompts import Request
from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.targets.registry import target_of

LOOKUP, ASSISTED = "transformers prompt lookup", "transformers assisted"
DRAFT_FREE = ("prompt_lookup", "lookahead", "rest", "suffix", "recycling")


def lineup(
    options: argparse.Namespace, model: Any, eos_ids: list[int], positions: int, stack: ExitStack
) -> list[Contestant]:
    """The rows of the table; the first is the output all others are compared with. ``positions`` is the longest context
    that occurs; ``stack`` ends the processes of those that need one of their own."""
    limit = options.max_new_tokens
    target = target_of(model, engine=options.engine)
    entries = [
        transformers_generate(model, "generate", eos_ids, limit),
        *(ours(model, target, name, settings, eos_ids, limit) for name, settings in methods(options)),
    ]
    for quantization in options.quantization:
        small = target_of(copy.deepcopy(model), consume=True, quantization=quantization, engine=options.engine)
        entries += [
            ours(model, small, name, settings, eos_ids, limit, suffix=f" {quantization}")
            for name, settings in methods(options)
            if name == "autoregressive" or settings.get("tree") == "chain"
        ]
    draft = int(drafters.default_length("prompt_lookup").partition(":")[2])
    entries.append(transformers_generate(model, "prompt lookup", eos_ids, limit, prompt_lookup_num_tokens=draft))
    if options.draft:
        assistant = _assistant(options.draft, model)
        entries.append(transformers_generate(model, "assisted", eos_ids, limit, assistant_model=assistant))
    if options.vllm:
        entries += [_vllm(options, head, eos_ids, positions, stack) for head in (None, *options.eagle)]
    if options.llamacpp:
        entries.append(_llamacpp(options, eos_ids, positions, stack))
    return entries


def _vllm(
    options: argparse.Namespace, head: Path | None, eos_ids: list[int], positions: int, stack: ExitStack
) -> Contestant:
    return _peer(options, peers.vllm(options, head, positions, stack), eos_ids)


def _llamacpp(options: argparse.Namespace, eos_ids: list[int], positions: int, stack: ExitStack) -> Contestant:
    """llama.cpp, with the weights in the type that all others have unless another one is asked for."""
    name = f"{LLAMACPP} {options.gguf_type}" if options.gguf_type else LLAMACPP
    file = peers.gguf(options, options.model, options.gguf_type or peers.GGUF_TYPES[options.dtype])
    return _peer(options, peers.llamacpp(options, file, name, positions, stack), eos_ids)


def _peer(options: argparse.Namespace, driver: Driver, eos_ids: list[int]) -> Contestant:
    latest: dict[str, Any] = {}

    def run(request: Request) -> Run:
        answer = driver.ask({"prompt": request.ids, "max_new_tokens": options.max_new_tokens, "eos_ids": eos_ids})
        latest.update(answer)
        return Run(answer["output"], answer["seconds"], answer["steps"] + 1, ttft=answer.get("ttft"))

    return Contestant(driver.name, run, lambda: latest.get("memory"), lambda: latest.get("resident"))


def ratios(names: list[str]) -> list[tuple[str, str]]:
    """Pairs whose speed ratio is printed besides the speed-up over our autoregressive decoding."""
    pairs = [(AUTOREGRESSIVE, GENERATE)]
    pairs += [(name, AUTOREGRESSIVE) for name in names if name.startswith(f"{AUTOREGRESSIVE} ")]
    pairs += [(name, GENERATE) for name in names if name.startswith("ours eagle")]
    free = [f"ours {method}" for method in DRAFT_FREE]
    pairs += [(name, LOOKUP) for name in names if name.startswith(tuple(free))]
    pairs += [(f"ours eagle {name[5:]} chain", name) for name in names if name.startswith("vLLM ")]
    gguf = next((name for name in names if name.startswith(LLAMACPP)), LLAMACPP)
    pairs += [(name, gguf) for name in names if name == AUTOREGRESSIVE or name.startswith("ours eagle")]
    pairs += [(name, ASSISTED) for name in names if name.startswith("ours draft_model")]
    return [(method, baseline) for method, baseline in pairs if method in names and baseline in names]


def methods(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of the row (method first, then what tells it apart) and options of the method."""
    given = [("autoregressive", {}), ("prompt_lookup", {}), ("lookahead", {}), ("recycling", {})]
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
    chosen = [drafters.resolve(name) for name in options.methods or ()] or [name for name, _ in given]
    known = {name.partition(" ")[0] for name, _ in given} | {name for name, _ in given}
    for name in chosen:
        if name not in known:
            raise unknown("method to measure", name, known)
    overrides = [_override(item) for item in options.set]
    for name, settings in given:
        method = name.partition(" ")[0]
        if method == "autoregressive" or {name, method} & set(chosen):
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
    from ianvs_specdec.models.loading import CAUSAL, load

    return load(CAUSAL, folder, what=f"the draft model {folder}", dtype=model.dtype).to(model.device)
