"""What is measured: our decoding methods, and the ``generate`` of transformers as the peer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bench.command import AUTOREGRESSIVE, attempted, interleaved
from bench.prompts import Request
from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Target, decode
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.memory import held
from ianvs_specdec.engine.request import Request as UnderWay

GENERATE = "transformers generate"


@dataclass
class Run:
    """One prompt decoded once: the new tokens, wall seconds, target forwards, and how many of these (0 or 1) were a
    pass over the prompt that yields one token and verifies nothing. ``ttft``: seconds to the first token."""

    token_ids: list[int]
    seconds: float
    forwards: int
    prefills: int = 1
    ttft: float | None = None


def _unknown() -> None:
    return None


@dataclass
class Contestant:
    """``decode(request)`` gives a run; ``measure`` fills in seconds and forwards where they are 0.

    Asked after the runs: ``memory`` are the bytes of the weights and caches that it holds (a cache as large as the
    longest run made it, or as was reserved), ``resident`` the most memory that its process had, where it has its own.
    ``target``: the kind of our engine's target that it runs on. ``baseline``: the row that its speed-up is over.
    """

    name: str
    decode: Callable[[Request], Run]
    memory: Callable[[], int | None] = _unknown
    resident: Callable[[], int | None] = _unknown
    target: str | None = None
    baseline: str = AUTOREGRESSIVE


def ours(
    model: Any,
    target: Target,
    name: str,
    settings: Mapping[str, Any],
    eos_ids: list[int],
    max_tokens: int,
    *,
    suffix: str = "",
) -> Contestant:
    """One of our methods on the ``target`` of a model; ``settings`` are its options, ``length`` among them. It keeps
    what it learns. ``suffix`` tells its row from that of the same method on another target."""
    method = name.partition(" ")[0]
    drafter = drafters.create(method, settings)
    length = lengths.create(str(settings.get("length", drafters.default_length(method))))
    sampling = Sampling(max_tokens=max_tokens)
    longest: list[int] = []

    def run(request: Request) -> Run:
        longest[:] = max(longest, request.ids, key=len)
        result = decode(target, drafter, length, request.ids, sampling, eos_ids=eos_ids, task=request.task)
        prefills = 0 if drafter.roots_in_prompt and len(request.ids) > 1 else 1
        return Run(result.token_ids, 0.0, len(result.trace.steps) + prefills, prefills, result.trace.ttft)

    def memory() -> int:
        """Looked at while the longest prompt is decoded once more: at its end a request gives back what it took."""
        most = 0

        def look(_: list[int]) -> None:
            nonlocal most
            # The model itself takes part too, with weights of its own, which this target has copied.
            most = max(most, held(target, drafter, again.sequence, apart=[model]))

        again = UnderWay(target, drafter, longest, sampling, eos_ids=eos_ids, on_tokens=look)
        engine = Engine(target, length)
        engine.add(again)
        while engine.busy:
            engine.step()
        again.result()
        return most

    row = (AUTOREGRESSIVE if method == "autoregressive" else f"ours {name}") + suffix
    return Contestant(row, run, memory, target=target.kind, baseline=AUTOREGRESSIVE + suffix)


def transformers_generate(model: Any, name: str, eos_ids: list[int], max_tokens: int, **settings: Any) -> Contestant:
    """``model.generate``, greedy; ``settings`` choose its mode."""
    largest_cache = [0]

    def run(request: Request) -> Run:
        ids = torch.tensor([request.ids], device=model.device)
        watcher = First()
        started = time.perf_counter()
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=eos_ids or None,
            pad_token_id=(eos_ids or [0])[0],
            streamer=watcher,
            return_dict_in_generate=True,
            **settings,
        )
        seconds = time.perf_counter() - started
        largest_cache[0] = max(largest_cache[0], held(output.past_key_values))
        new = output.sequences[0, len(request.ids) :].tolist()
        # Its first pass verifies the first draft together with the prompt.
        return Run(new, seconds, 0, prefills=0, ttft=watcher.first - started)

    def memory() -> int:
        return held(model, settings) + largest_cache[0]

    return Contestant(f"transformers {name}", run, memory)


class First:
    """A streamer for ``generate`` that notes when the first tokens came: it is given the prompt, then all others."""

    def __init__(self) -> None:
        self.first = 0.0
        self._seen_prompt = False

    def put(self, tokens: Any) -> None:
        if self._seen_prompt:
            self.first = self.first or time.perf_counter()
        self._seen_prompt = True

    def end(self) -> None:
        """Part of the interface; what was to be noted has been noted."""


def measure(
    model: Any,
    entries: list[Contestant],
    requests: list[Request],
    repeats: int,
    failed: dict[str, str],
) -> dict[str, list[list[Run]]]:
    """Every contestant on every prompt, ``repeats`` times, ``interleaved``.

    Before that each contestant decodes the first prompts once, uncounted. Returns per name, per prompt, the repeats.
    Who fails is not asked again, and stands in ``failed`` with the reason.
    """
    forwards = [0]

    def count(*_: Any) -> None:
        forwards[0] += 1

    hook = model.register_forward_pre_hook(count)
    runs: dict[str, list[list[Run]]] = {entry.name: [[] for _ in requests] for entry in entries}
    try:
        for entry in entries:
            with attempted(entry.name, failed):
                for request in requests[:2]:
                    entry.decode(request)
        for i, entry in interleaved(entries, len(requests), repeats):
            if entry.name in failed:
                continue
            forwards[0] = 0
            started = time.perf_counter()
            with attempted(entry.name, failed):
                run = entry.decode(requests[i])
                seconds = time.perf_counter() - started
                run.seconds, run.forwards = run.seconds or seconds, run.forwards or forwards[0]
                runs[entry.name][i].append(run)
    finally:
        hook.remove()
    return {name: found for name, found in runs.items() if name not in failed}
