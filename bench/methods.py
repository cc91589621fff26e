"""The rows of ``bench``: our methods, each with the settings it is best at, and their peers."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from bench import peers
from bench.command import AUTOREGRESSIVE, attempted, interleaved
from bench.options import override
from bench.peers import LLAMACPP, Peer
from bench.prompts import Request
from bench.statistics import Run
from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import unknown
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Target
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.engine.memory import tensor_bytes
from ianvs_specdec.engine.request import Request as EngineRequest
from ianvs_specdec.targets.registry import create_target

GENERATE, LOOKUP, ASSISTED = (f"transformers {mode}" for mode in ("generate", "prompt lookup", "assisted"))
DRAFT_FREE = tuple(f"ours {method}" for method in ("prompt_lookup", "lookahead", "rest", "suffix", "recycling"))
STATIC, CHAIN = {"tree": "static"}, {"tree": "chain", "depth": 7}
LOOKAHEADS = ({"level": 5, "window": 7, "guess": 7}, {"level": 7, "window": 20, "guess": 20})


def unknown_memory() -> None:
    return None


@dataclass
class Contestant:
    """A row: ``decode(request)`` returns a run; ``measure`` fills in seconds and forwards where they are 0. ``memory``:
    bytes of its weights and caches; ``resident``: the most memory of its own process. ``target``: the kind of our
    engine's target; ``baseline``: the row that its speed-up is over."""

    name: str
    decode: Callable[[Request], Run]
    memory: Callable[[], int | None] = unknown_memory
    resident: Callable[[], int | None] = unknown_memory
    target: str | None = None
    baseline: str = AUTOREGRESSIVE


class Method:
    """One of our methods on a target. ``settings`` are its options, ``length`` among them. Answers are greedy, and end
    at ``eos_ids`` or after ``max_tokens``."""

    def __init__(
        self, target: Target, name: str, settings: Mapping[str, Any], eos_ids: list[int], max_tokens: int
    ) -> None:
        method = name.partition(" ")[0]
        self.target, self.eos_ids, self.sampling = target, eos_ids, Sampling(max_tokens=max_tokens)
        self.drafter = drafters.create(method, settings)
        self.drafter.prepare(target)
        self.length = str(settings.get("length", drafters.default_length(method)))
        self._policy = lengths.create(self.length)
        self._longest: list[int] = []

    def request(self, ids: list[int], **options: Any) -> EngineRequest:
        """A request with a drafter of its own."""
        return EngineRequest(self.target, self.drafter.fork(), ids, self.sampling, eos_ids=self.eos_ids, **options)

    def decode(self, request: Request) -> Run:
        """One request alone. The drafter keeps what it learns."""
        self._longest = max(self._longest, request.ids, key=len)
        result = self._decoded(request.ids, task=request.task)
        prefills = 0 if self.drafter.roots_in_prompt and len(request.ids) > 1 else 1
        return Run(result.token_ids, 0.0, len(result.trace.steps) + prefills, prefills, result.trace.ttft)

    def memory(self, model: Any) -> int:
        """Bytes that are held while the longest prompt is decoded once more: at its end a request frees its cache. The
        ``model`` has weights of its own, which the target has copied."""
        found: list[int] = []

        def look(_: list[int]) -> None:
            found.append(tensor_bytes(self.target, self.drafter, self._latest.sequence, exclude=[model]))

        self._decoded(self._longest, on_tokens=look)
        return max(found)

    def _decoded(self, ids: list[int], **options: Any) -> Any:
        self._latest = EngineRequest(self.target, self.drafter, ids, self.sampling, eos_ids=self.eos_ids, **options)
        engine = Engine(self.target, self._policy)
        engine.add(self._latest)
        while engine.busy:
            engine.step()
        return self._latest.result()


def lineup(
    options: argparse.Namespace, model: Any, eos_ids: list[int], positions: int, stack: ExitStack
) -> list[Contestant]:
    """The rows; all outputs are compared with that of the first. ``positions``: the longest context; ``stack`` ends
    the peers' processes."""
    limit = options.max_new_tokens
    entries = [generate(model, GENERATE, eos_ids, limit), *_ours(options, model, eos_ids)]
    draft = int(drafters.default_length("prompt_lookup").partition(":")[2])
    entries.append(generate(model, LOOKUP, eos_ids, limit, prompt_lookup_num_tokens=draft))
    if options.draft:
        from ianvs_specdec.models.loading import CAUSAL, load

        assistant = load(CAUSAL, options.draft, what=f"the draft model {options.draft}", dtype=model.dtype)
        entries.append(generate(model, ASSISTED, eos_ids, limit, assistant_model=assistant.to(model.device)))
    if options.vllm:
        for head in (None, *options.eagle):
            driver = peers.vllm(options, head, positions, stack)
            entries.append(peer(options, driver, driver.name, eos_ids, temperature=0))
    if options.llamacpp:
        name = f"{LLAMACPP} {options.gguf_type}" if options.gguf_type else LLAMACPP
        file = peers.gguf(options, options.model, options.gguf_type or peers.GGUF_TYPES[options.dtype])
        entries.append(peer(options, peers.llamacpp(options, file, name, positions, stack), name, eos_ids))
    if options.official:
        entries += _published(options, eos_ids, stack)
    return entries


def _ours(options: argparse.Namespace, model: Any, eos_ids: list[int]) -> Iterator[Contestant]:
    for quantization in (None, *options.quantization):
        own = copy.deepcopy(model) if quantization else model
        target = create_target(own, consume=own is not model, quantization=quantization, engine=options.engine)
        suffix = f" {quantization}" if quantization else ""
        for name, settings in methods(options, quantization):
            method = Method(target, name, settings, eos_ids, options.max_new_tokens)
            memory = lambda method=method: method.memory(model)  # noqa: E731
            baseline = AUTOREGRESSIVE + suffix
            yield Contestant(f"ours {name}{suffix}", method.decode, memory, target=target.kind, baseline=baseline)


def generate(model: Any, name: str, eos_ids: list[int], max_tokens: int, **settings: Any) -> Contestant:
    """``model.generate``, greedy; ``settings`` choose its mode."""
    largest_cache = [0]

    def decode(request: Request) -> Run:
        ids = torch.tensor([request.ids], device=model.device)
        watcher = FirstToken()
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
        largest_cache[0] = max(largest_cache[0], tensor_bytes(output.past_key_values))
        new = output.sequences[0, len(request.ids) :].tolist()
        # Its first pass verifies the first draft together with the prompt.
        return Run(new, seconds, 0, prefills=0, ttft=watcher.time - started)

    return Contestant(name, decode, lambda: tensor_bytes(model, settings) + largest_cache[0])


class FirstToken:
    """A streamer for ``generate`` that notes the time of the first tokens: it is given the prompt, then all others."""

    def __init__(self) -> None:
        self.time = 0.0
        self._seen_prompt = False

    def put(self, tokens: Any) -> None:
        if self._seen_prompt:
            self.time = self.time or time.perf_counter()
        self._seen_prompt = True

    def end(self) -> None:
        """Part of the interface."""


def peer(options: argparse.Namespace, driver: Peer, name: str, eos_ids: list[int], **more: Any) -> Contestant:
    def decode(request: Request) -> Run:
        return driver.decode(request.ids, options.max_new_tokens, eos_ids, **more)

    return Contestant(name, decode, driver.memory, driver.resident)


def _published(options: argparse.Namespace, eos_ids: list[int], stack: ExitStack) -> Iterator[Contestant]:
    """eagle-llm and lade, each beside ``generate`` of its environment. eagle-llm 1.2.1 has the static tree of EAGLE-1
    and takes any other fixed one."""
    rows: dict[str, dict[str, Any]] = {
        "eagle-llm": {"static": STATIC, "chain of 7": CHAIN},
        "lade": {_shape(settings): settings for settings in LOOKAHEADS},
    }
    for package, settings in rows.items():
        driver = peers.published(options, package, eos_ids, stack)
        yield peer(options, driver, f"{package}-env generate", eos_ids, settings={"generate": True})
        for name, own in settings.items():
            yield peer(options, driver, f"{package} {name}", eos_ids, settings=own)


def _shape(settings: Mapping[str, int]) -> str:
    return f"({','.join(map(str, settings.values()))})"


def ratios(names: list[str]) -> list[tuple[str, str]]:
    """Pairs whose speed ratio is printed besides the speed-up over our autoregressive decoding."""
    pairs = [(AUTOREGRESSIVE, GENERATE)]
    pairs += [(name, AUTOREGRESSIVE) for name in names if name.startswith(f"{AUTOREGRESSIVE} ")]
    pairs += [(name, GENERATE) for name in names if name.startswith("ours eagle")]
    pairs += [(name, LOOKUP) for name in names if name.startswith(DRAFT_FREE)]
    pairs += [(f"ours eagle {name[5:]} chain", name) for name in names if name.startswith("vLLM ")]
    pairs += [(AUTOREGRESSIVE, "vLLM")]
    gguf = next((name for name in names if name.startswith(LLAMACPP)), LLAMACPP)
    pairs += [(name, gguf) for name in names if name.startswith((AUTOREGRESSIVE, "ours eagle"))]
    pairs += [(name, ASSISTED) for name in names if name.startswith("ours draft_model")]
    for package, method in (("eagle-llm", "eagle"), ("lade", "lookahead")):
        own = [name for name in names if name.startswith(f"{package} ")]
        pairs += [(f"ours {method}{name.removeprefix(package)}", name) for name in own]
        pairs += [(name, f"{package}-env generate") for name in own]
    return [(method, baseline) for method, baseline in pairs if method in names and baseline in names]


def methods(options: argparse.Namespace, quantization: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of the row (method first, then what distinguishes it) and options of the method. Models in few bits are
    measured alone and with chains."""
    given = _given(options)
    chosen = [drafters.resolve(name) for name in options.methods or ()] or [name for name, _ in given]
    known = {name.partition(" ")[0] for name, _ in given} | {name for name, _ in given}
    for name in chosen:
        if name not in known:
            raise unknown("method to measure", name, known)
    overrides = [override(item) for item in options.set]
    for name, settings in given:
        method = name.partition(" ")[0]
        few = quantization is None or settings.get("tree") == "chain"
        if method == "autoregressive" or (few and {name, method} & set(chosen)):
            yield name, {**settings, **{key: value for scope, key, value in overrides if scope in (name, method)}}


def _given(options: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    """Every method that has what it needs."""
    given: list[tuple[str, dict[str, Any]]]
    given = [("autoregressive", {}), ("prompt_lookup", {}), ("lookahead", {}), ("recycling", {})]
    datastore = {"datastore": str(options.datastore)} if options.datastore else {}
    given += [("rest", datastore)] * bool(datastore)
    given.append(("suffix", datastore))
    if options.draft:
        given.append(("draft_model", {"draft": str(options.draft)}))
    if options.medusa:
        given.append(("medusa", {"head": str(options.medusa)}))
    if options.dflash:
        given.append(("dflash", {"head": str(options.dflash)}))
    for head in options.eagle:
        given += [(f"eagle {head.name} {tree}", {"head": str(head), "tree": tree}) for tree in ("chain", "dynamic")]
    if options.official:
        # With the settings of the published packages.
        head = str(peers.eagle_head(options))
        chain = {"tree": "chain", "total_tokens": 8, "depth": 6, "eagle_topk": 1}
        given += [("eagle static", {"head": head, **STATIC}), ("eagle chain of 7", {"head": head, **chain})]
        given += [(f"lookahead {_shape(own)}", {"start": "official", **own}) for own in LOOKAHEADS]
    return given


def measure(
    model: Any, entries: list[Contestant], requests: list[Request], repeats: int, failed: dict[str, str]
) -> dict[str, list[list[Run]]]:
    """Per name, per prompt, the repeats, ``interleaved``, after a warm-up. A row that fails is not asked again."""
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
