"""What is measured: our decoding methods, and the ``generate`` of transformers as the peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.prompts import Request
from ianvs_specdec import drafters, lengths
from ianvs_specdec.decoding import Target, decode
from ianvs_specdec.types import Sampling

GENERATE = "transformers generate"
AUTOREGRESSIVE = "ours autoregressive"


@dataclass
class Run:
    """One prompt decoded once: the new tokens, wall seconds, target forwards, output positions that were near-ties, and
    how many of the forwards (0 or 1) were a pass over the prompt that yields one token and verifies nothing."""

    token_ids: list[int]
    seconds: float
    forwards: int
    near_ties: tuple[int, ...] = ()
    prefills: int = 1


@dataclass
class Contestant:
    """``decode(request)`` gives a run; ``measure`` fills in seconds and forwards where they are 0."""

    name: str
    decode: Callable[[Request], Run]


def ours(target: Target, name: str, settings: Mapping[str, Any], eos_ids: list[int], max_tokens: int) -> Contestant:
    """One of our methods; ``settings`` are its options, ``length`` among them. It keeps what it learns."""
    method = name.partition(" ")[0]
    drafter = drafters.create(method, settings)
    length = lengths.create(str(settings.get("length", drafters.default_length(method))))
    sampling = Sampling(max_tokens=max_tokens)

    def run(request: Request) -> Run:
        result = decode(target, drafter, length, request.ids, sampling, eos_ids=eos_ids, task=request.task)
        prefills = 0 if drafter.roots_in_prompt and len(request.ids) > 1 else 1
        near_ties = tuple(position for position, _ in result.trace.near_ties)
        return Run(result.token_ids, 0.0, len(result.trace.steps) + prefills, near_ties, prefills)

    return Contestant(AUTOREGRESSIVE if method == "none" else f"ours {name}", run)


def transformers_generate(model: Any, name: str, eos_ids: list[int], max_tokens: int, **settings: Any) -> Contestant:
    """``model.generate``, greedy; ``settings`` choose its mode."""

    def run(request: Request) -> Run:
        ids = torch.tensor([request.ids], device=model.device)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=eos_ids or None,
            pad_token_id=(eos_ids or [0])[0],
            **settings,
        )
        # Its first pass verifies the first draft together with the prompt.
        return Run(output[0, len(request.ids) :].tolist(), 0.0, 0, prefills=0)

    return Contestant(f"transformers {name}", run)


def measure(
    model: Any,
    entries: list[Contestant],
    requests: list[Request],
    repeats: int,
    progress: Callable[[int, int], None],
) -> dict[str, list[list[Run]]]:
    """Every contestant on every prompt, ``repeats`` times: A B C A B C ..., so that drift of the machine hits all
    alike.

    Before that each contestant decodes the first prompts once, uncounted. Returns per name, per prompt, the repeats.
    """
    forwards = [0]

    def count(*_: Any) -> None:
        forwards[0] += 1

    hook = model.register_forward_pre_hook(count)
    runs: dict[str, list[list[Run]]] = {entry.name: [[] for _ in requests] for entry in entries}
    try:
        for entry in entries:
            for request in requests[:2]:
                entry.decode(request)
        for repeat in range(repeats):
            for i, request in enumerate(requests):
                progress(repeat * len(requests) + i, repeats * len(requests))
                # Each goes first as often as any other: what runs before it decides what the caches hold.
                turn = (repeat * len(requests) + i) % len(entries)
                for entry in entries[turn:] + entries[:turn]:
                    forwards[0] = 0
                    started = time.perf_counter()
                    run = entry.decode(request)
                    seconds = time.perf_counter() - started
                    run.seconds, run.forwards = run.seconds or seconds, run.forwards or forwards[0]
                    runs[entry.name][i].append(run)
    finally:
        hook.remove()
    return runs
