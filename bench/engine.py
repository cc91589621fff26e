"""``python -m bench.engine`` (``make bench-gpu``): what a step of our engine costs at real size, whatever is drafted.

The target has the shape of a Llama with 7 billion parameters and random weights, so nothing has to be downloaded.
Acceptance is synthetic: a chain of drafts is verified, and the harness decides how many of them count, drawn so that
``tau`` tokens come out per step on average. What is left is the engine: step time against the time the memory needs to
deliver the weights once, and token/s at several tau against ``generate`` of transformers in the same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench.environment import environment
from ianvs_specdec.errors import UserError
from ianvs_specdec.identity import write_atomically

SHAPES: dict[str, dict[str, int]] = {
    "7b": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 128,
    },
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench.engine", description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--shape", choices=tuple(SHAPES), default="7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--tau", type=float, nargs="+", default=[3.0, 4.0, 5.0], metavar="T")
    parser.add_argument("--draft", type=int, default=7, metavar="N", help="drafted tokens of a step (7)")
    parser.add_argument("--prompt", type=int, default=256, metavar="N", help="prompt tokens (256)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="new tokens (128)")
    parser.add_argument("--repeats", type=int, default=3, metavar="R")
    parser.add_argument("--out", type=Path, default=Path("runs") / "bench-gpu" / "engine.json", metavar="FILE")
    options = parser.parse_args(argv)
    try:
        report = _run(options)
    except UserError as error:
        print(f"bench.engine: {error}", file=sys.stderr)
        return 2
    print(table(report))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(options.out, json.dumps(report, indent=1) + "\n")
    print(f"written: {options.out}")
    return 0


def _run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from ianvs_specdec.decoding import target_of

    if any(not 1 <= tau <= options.draft + 1 for tau in options.tau):
        raise UserError(f"--tau must be from 1 to {options.draft + 1}: a step drafts {options.draft} tokens")
    model = _random_llama(options)
    seconds = _seconds_of(torch, options.device)
    prompt = list(range(1, options.prompt + 1)) if options.shape != "tiny" else [1 + i % 100 for i in range(16)]
    ids = torch.tensor([prompt], device=options.device)

    def generate() -> None:
        settings = {"max_new_tokens": options.tokens, "min_new_tokens": options.tokens, "do_sample": False}
        model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **settings)

    target = target_of(model)
    entries: dict[str, Callable[[], None]] = {"transformers generate": generate}
    for tau in (1.0, *options.tau):
        entries[f"ours, tau {tau:g}"] = _speculation(target, prompt, options.tokens, options.draft, tau)
    timings: dict[str, list[float]] = {name: [] for name in entries}
    for run in entries.values():
        run()
    for _ in range(options.repeats):
        for name, run in entries.items():
            timings[name].append(seconds(run))

    weights = sum(p.numel() * p.element_size() for p in model.parameters()) - model.get_input_embeddings().weight.nbytes
    floor = weights / _bandwidth(torch, options.device, seconds)
    return {
        "shape": options.shape,
        "environment": {
            **environment(),
            "device": _device_name(torch, options.device),
            "dtype": options.dtype,
            "target": target.kind,
        },
        "settings": {"prompt": len(prompt), "tokens": options.tokens, "draft": options.draft},
        "weights_bytes": weights,
        "floor_seconds": floor,
        "steps": {nodes: _step_seconds(target, prompt, nodes, seconds) for nodes in (1, options.draft + 1, 60)},
        "tokens_per_second": {name: options.tokens / median(times) for name, times in timings.items()},
        "seconds": timings,
    }


def _random_llama(options: argparse.Namespace) -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.initialization import no_init_weights

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device cuda: no GPU here; try --device cpu --shape tiny")
    config = LlamaConfig(**SHAPES[options.shape], max_position_embeddings=4096, eos_token_id=None, bos_token_id=1)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, options.dtype))
    try:
        with torch.device(options.device), no_init_weights():
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(previous)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0) if parameter.ndim == 1 else parameter.normal_(std=0.02)
    return model


def _speculation(target: Any, prompt: list[int], tokens: int, draft: int, tau: float) -> Callable[[], None]:
    """Decoding as in ``decoding.loop`` with a drafter that costs nothing and acceptance that keeps ``tau - 1`` drafts
    on average."""
    import random

    from ianvs_specdec.decoding import TokenTree
    from ianvs_specdec.decoding.acceptance import Greedy

    def run() -> None:
        chance = random.Random(1)
        accept = Greedy()
        sequence, logits = _read(target, prompt)
        last = accept(TokenTree.chain(prompt[-1]), logits).token
        done = 1
        while done < tokens:
            tree = TokenTree.chain(last, [last] * draft if tau > 1 else ())
            (output,) = target.step([(sequence, tree)])
            last = accept(tree, output.logits).token
            kept = int(tau - 1) + (chance.random() < (tau - 1) % 1)
            sequence.commit(list(range(kept + 1)))
            done += kept + 1
        sequence.close()

    return run


def _step_seconds(target: Any, prompt: list[int], nodes: int, seconds: Callable[..., float]) -> float:
    from ianvs_specdec.decoding import TokenTree

    sequence, _ = _read(target, prompt)
    tree = TokenTree.chain(1, [1] * (nodes - 1))
    target.step([(sequence, tree)])
    taken = median(seconds(lambda: target.step([(sequence, tree)])) for _ in range(20))
    sequence.close()
    return taken


def _read(target: Any, prompt: list[int]) -> tuple[Any, Any]:
    """A sequence that holds ``prompt``, and the logits after it."""
    from ianvs_specdec.decoding.contracts import pieces

    sequence = target.open()
    for piece in pieces(prompt, target.prompt_rows):
        (output,) = target.step([(sequence, piece)])
    return sequence, output.logits


def _seconds_of(torch: Any, device: str) -> Callable[[Callable[[], Any]], float]:
    def seconds(run: Callable[[], Any]) -> float:
        started = time.perf_counter()
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - started

    return seconds


def _bandwidth(torch: Any, device: str, seconds: Callable[..., float]) -> float:
    """Bytes per second that a sum over a large tensor reads: what the memory gives in practice."""
    large = torch.ones((1 << 30 if device.startswith("cuda") else 1 << 27) // 4, device=device)
    large.sum()
    return float(large.nbytes / min(seconds(lambda: large.sum()) for _ in range(10)))


def _device_name(torch: Any, device: str) -> str:
    return str(torch.cuda.get_device_name(device)) if device.startswith("cuda") else device


def table(report: dict[str, Any]) -> str:
    place, rates = report["environment"], report["tokens_per_second"]
    lines = [
        f"Llama {report['shape']}, random weights, {place['dtype']}, {place['device']}, torch {place['torch']}: "
        f"reading {report['weights_bytes'] / 1e9:.2f} GB of weights takes {1e3 * report['floor_seconds']:.2f} ms",
        "",
        f"{'tokens in a step':28}{'ms':>9}{'of the floor':>14}",
    ]
    for nodes, time_taken in report["steps"].items():
        lines.append(f"{nodes:<28}{1e3 * time_taken:9.2f}{time_taken / report['floor_seconds']:14.2f}")
    lines += ["", f"{'':28}{'token/s':>9}{'of generate':>14}"]
    for name, rate in rates.items():
        lines.append(f"{name:28}{rate:9.1f}{rate / rates['transformers generate']:14.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
