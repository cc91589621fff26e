"""What is measured: our decoding methods, and the ``generate`` of transformers as the peer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.decoding import HuggingFaceTarget, decode
from ianvs_specdec.types import Sampling


@dataclass
class Run:
    """One prompt decoded once: the new tokens, wall seconds, target forwards, and output positions that were
    near-ties."""

    token_ids: list[int]
    seconds: float
    forwards: int
    near_ties: tuple[int, ...] = ()


@dataclass
class Contestant:
    """``decode(prompt ids)`` gives the new token ids and the near-tied positions, where it tells them."""

    name: str
    decode: Callable[[list[int]], tuple[list[int], tuple[int, ...]]]


def ours(model: Any, method: str, eos_ids: list[int], max_tokens: int) -> Contestant:
    target = HuggingFaceTarget(model)
    drafter, length = drafters.create(method), lengths.create(drafters.default_length(method))
    sampling = Sampling(max_tokens=max_tokens)

    def run(prompt: list[int]) -> tuple[list[int], tuple[int, ...]]:
        result = decode(target, drafter, length, prompt, sampling, eos_ids=eos_ids)
        return result.token_ids, tuple(position for position, _ in result.trace.near_ties)

    return Contestant(f"ours {'autoregressive' if method == 'none' else method}", run)


def transformers_generate(model: Any, name: str, eos_ids: list[int], max_tokens: int, **settings: Any) -> Contestant:
    """``model.generate``, greedy; ``settings`` choose its mode."""

    def run(prompt: list[int]) -> tuple[list[int], tuple[int, ...]]:
        ids = torch.tensor([prompt], device=model.device)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=eos_ids or None,
            pad_token_id=(eos_ids or [0])[0],
            **settings,
        )
        return output[0, len(prompt) :].tolist(), ()

    return Contestant(f"transformers {name}", run)


def contestants(model: Any, eos_ids: list[int], max_tokens: int) -> list[Contestant]:
    """The rows of the table; the first is the output all others are compared with."""
    draft = int(drafters.default_length("prompt_lookup").partition(":")[2])
    return [
        transformers_generate(model, "generate", eos_ids, max_tokens),
        ours(model, "none", eos_ids, max_tokens),
        transformers_generate(model, "prompt lookup", eos_ids, max_tokens, prompt_lookup_num_tokens=draft),
        ours(model, "prompt_lookup", eos_ids, max_tokens),
    ]


RATIOS = (
    ("ours autoregressive", "transformers generate"),
    ("ours prompt_lookup", "transformers prompt lookup"),
    ("ours prompt_lookup", "ours autoregressive"),
)
"""Pairs whose speed ratio is printed."""


def measure(
    model: Any, entries: list[Contestant], prompts: list[list[int]], repeats: int, progress: Callable[[int, int], None]
) -> dict[str, list[list[Run]]]:
    """Every contestant on every prompt, ``repeats`` times: A B C A B C ..., so that drift of the machine hits all
    alike.

    Before that each contestant decodes the first prompt once, uncounted. Returns per name, per prompt, the repeats.
    """
    forwards = [0]

    def count(*_: Any) -> None:
        forwards[0] += 1

    hook = model.register_forward_pre_hook(count)
    runs: dict[str, list[list[Run]]] = {entry.name: [[] for _ in prompts] for entry in entries}
    try:
        for entry in entries:
            entry.decode(prompts[0])
        for repeat in range(repeats):
            for i, prompt in enumerate(prompts):
                progress(repeat * len(prompts) + i, repeats * len(prompts))
                for entry in entries:
                    forwards[0] = 0
                    started = time.perf_counter()
                    token_ids, near_ties = entry.decode(prompt)
                    seconds = time.perf_counter() - started
                    runs[entry.name][i].append(Run(token_ids, seconds, forwards[0], near_ties))
    finally:
        hook.remove()
    return runs
