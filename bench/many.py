"""``python -m bench.many``: token/s of the whole with several requests under way at once, ours beside its peers.

The same prompts for all, greedy. A round is a batch of them: all are there from the start, as many as a row says are
under way at once, and who ends makes room for the next. The rows take turns, round by round, so that drift of the
machine hits all alike. With ``--length`` each method has a row for each of these speculation lengths, and a policy is
held against the best fixed length in hindsight. Prints a table and writes ``many.json`` and ``many.csv`` into the
output folder.
"""

from __future__ import annotations

import argparse
import copy
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from bench.command import AUTOREGRESSIVE as REFERENCE
from bench.command import (
    Report,
    attempted,
    columns,
    command,
    environment,
    interleaved,
    interval,
    numbers,
    ratio_line,
    to_csv,
    to_json,
)
from bench.options import eos_of, load, requests_of, shared, with_defaults
from bench.statistics import Estimate, middle
from ianvs_specdec.benchmarks.files import positive

if TYPE_CHECKING:
    from bench.methods import Method
    from bench.prompts import Request
    from ianvs_specdec.engine.length import Length

AT_ONCE = (1, 4, 8, 16)
FIXED = "fixed:"
BATCHES_OF = 2
"""Requests of a batch for each concurrent one: with fewer, most of a round would be its end."""


@dataclass
class Round:
    """A batch decoded once: each request's new tokens, and the seconds until the last one's end."""

    outputs: list[list[int]]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second of the whole."""
        return sum(map(len, self.outputs)) / self.seconds


@dataclass
class Row:
    """``serve(batch)`` decodes it with ``at_once`` concurrent requests. Its outputs are compared with those of the row
    ``like``."""

    name: str
    at_once: int
    serve: Callable[[Sequence[Request]], Round]
    target: str | None = None
    like: str = REFERENCE


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    files = {"many.json": to_json, "many.csv": lambda report: to_csv(report["rows"])}
    return command("bench.many", lambda: _run(options), options.out, table, files)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.many", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    shared(parser)
    add = parser.add_argument
    add("--at-once", type=numbers, default=list(AT_ONCE), metavar="A,B", help="requests under way (1,4,8,16)")
    add("--limit", type=positive, default=32, metavar="N", help="prompts of each file, spread evenly over it (32)")
    add("--length", action="append", default=[], metavar="L", help="goodput, fixed:4, ...; repeatable (the methods')")
    parser.set_defaults(medusa=None, dflash=None, draft=None, datastore=None, methods=None, official=None)
    return with_defaults(parser.parse_args(argv))


def _run(options: argparse.Namespace) -> dict[str, Any]:
    model, tokenizer = load(options)
    requests = requests_of(options, model, tokenizer)
    count = max(1, len(requests) // (BATCHES_OF * max(options.at_once)))
    # Each batch has its share of every file.
    batches = [requests[number::count] for number in range(count)]
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        positions = max(len(request.ids) for request in requests) + options.max_new_tokens
        rows = [*_own_rows(options, model), *_peer_rows(options, eos_of(model), positions, stack)]
        rounds: list[list[Round]] = [[] for _ in rows]
        for row in rows:
            with attempted(row.name, failed):
                row.serve(batches[0][: row.at_once])
        for batch, (row, done) in interleaved(list(zip(rows, rounds, strict=True)), count, options.repeats):
            if row.name not in failed:
                with attempted(row.name, failed):
                    done.append(row.serve(batches[batch]))
    whole = [(row, done) for row, done in zip(rows, rounds, strict=True) if row.name not in failed]
    return {**_report(options, batches, *map(list, zip(*whole, strict=True))), "failed": failed}


def _own_rows(options: argparse.Namespace, model: Any) -> Iterator[Row]:
    from bench.methods import Method, methods
    from ianvs_specdec.targets.registry import create_target

    for quantization in (None, *options.quantization):
        own = copy.deepcopy(model) if quantization else model
        target = create_target(own, consume=own is not model, quantization=quantization, engine=options.engine)
        for name, settings in methods(options, quantization):
            if name == "autoregressive" or settings.get("tree") == "chain":
                method = Method(target, name, settings, eos_of(model), options.max_new_tokens)
                yield from _ours(options, method, name, f" {quantization}" if quantization else "")


def _ours(options: argparse.Namespace, method: Method, name: str, suffix: str) -> Iterator[Row]:
    """One of our methods on the engine that serves many, once for each length and number at once."""
    from ianvs_specdec import lengths
    from ianvs_specdec.engine.loop import Engine

    def serve(length: Length, at_once: int, batch: Sequence[Request]) -> Round:
        started = time.perf_counter()
        engine = Engine(method.target, length, max_batch_size=at_once)
        asked = [method.request(request.ids, task=request.task) for request in batch]
        for request in asked:
            engine.add(request)
        while engine.busy:
            engine.step()
        return Round([request.result().token_ids for request in asked], time.perf_counter() - started)

    named = [(f" {length}", length) for length in options.length]
    if name == "autoregressive" or not named:
        named = [("", method.length)]
    for addition, length in named:
        for at_once in options.at_once:
            # A length of its own for each row, for all its rounds: a server's lives as long as the server.
            served = functools.partial(serve, lengths.create(length), at_once)
            yield Row(f"ours {name}{suffix}{addition}", at_once, served, method.target.kind, REFERENCE + suffix)


def _peer_rows(options: argparse.Namespace, eos_ids: list[int], positions: int, stack: ExitStack) -> Iterator[Row]:
    from bench import peers

    most = max(options.at_once)
    drivers: list[peers.Peer] = []
    if options.llamacpp:
        kind = options.gguf_type or peers.GGUF_TYPES[options.dtype]
        file = peers.gguf(options, options.model, kind)
        drivers.append(peers.llamacpp(options, file, f"{peers.LLAMACPP} {kind}", positions, stack, most))
    if options.vllm:
        drivers += [peers.vllm(options, head, positions, stack, most) for head in (None, *options.eagle)]

    def serve(driver: peers.Peer, at_once: int, batch: Sequence[Request]) -> Round:
        prompts = [request.ids for request in batch]
        return Round(*driver.decode_all(prompts, at_once, options.max_new_tokens, eos_ids))

    for driver in drivers:
        for at_once in options.at_once:
            yield Row(driver.name, at_once, functools.partial(serve, driver, at_once))


def _report(
    options: argparse.Namespace, batches: list[list[Request]], rows: list[Row], rounds: list[list[Round]]
) -> dict[str, Any]:
    from bench.methods import ratios

    found = {(row.name, row.at_once): done for row, done in zip(rows, rounds, strict=True)}
    least = min(options.at_once)
    names = list(dict.fromkeys(row.name for row in rows))
    pairs = [(*pair, n) for pair in ratios(names) for n in options.at_once]
    pairs += _hindsight(found, options)
    return {
        "model": str(options.model),
        "settings": {
            "max_new_tokens": options.max_new_tokens,
            "rounds": len(found[REFERENCE, least]),
            "batch": len(batches[0]),
            "prompts": sum(map(len, batches)),
            "dtype": options.dtype,
            "device": options.device,
        },
        "environment": environment(),
        "rows": [
            {
                "name": row.name,
                "at_once": row.at_once,
                "target": row.target,
                "tokens_per_second": asdict(_rate(done)),
                "of_least": asdict(_ratio(done, found[row.name, least])),
                "same_output": _same(done, found[row.like, least]),
            }
            for row, done in zip(rows, rounds, strict=True)
        ],
        "ratios": [
            {"method": method, "baseline": other, "at_once": n, **asdict(_ratio(found[method, n], found[other, n]))}
            for method, other, n in pairs
        ],
        "rounds": [
            {"name": row.name, "at_once": row.at_once, "seconds": [part.seconds for part in done]}
            for row, done in zip(rows, rounds, strict=True)
        ],
    }


def _rate(rounds: list[Round]) -> Estimate:
    return middle([done.rate for done in rounds])


def _ratio(rounds: list[Round], baseline: list[Round]) -> Estimate:
    """Of the same batches, one just after the other."""
    return middle([own.rate / other.rate for own, other in zip(rounds, baseline, strict=True)])


def _same(rounds: list[Round], reference: list[Round]) -> float:
    """The share of outputs that are those of the reference."""
    equal = [
        own == other
        for done, expected in zip(rounds, reference, strict=True)
        for own, other in zip(done.outputs, expected.outputs, strict=True)
    ]
    return sum(equal) / len(equal)


def _hindsight(found: dict[tuple[str, int], list[Round]], options: argparse.Namespace) -> list[tuple[str, str, int]]:
    """Each policy's row beside the best of the method's fixed lengths and none."""
    pairs = []
    for name, n in found:
        method, _, length = name.rpartition(" ")
        if length not in options.length or length.startswith(FIXED):
            continue
        fixed = [other for other in options.length if other.startswith(FIXED)]
        others = [one for one in (REFERENCE, *(f"{method} {other}" for other in fixed)) if (one, n) in found]
        best = max(others, key=lambda other: _rate(found[other, n]).value)
        pairs.append((name, best, n))
    return pairs


def table(report: Report) -> str:
    settings, place = report["settings"], report["environment"]
    least = min(row["at_once"] for row in report["rows"])
    heads = ["method", "computed by", "at once", "token/s", "95 %", f"over {least}", "95 %", "same output"]
    return "\n".join([
        f"{report['model']}: {settings['prompts']} prompts in batches of {settings['batch']}, {settings['rounds']} "
        f"rounds, up to {settings['max_new_tokens']} new tokens, {settings['dtype']}, greedy",
        f"{place['processor']}, {place['threads']} threads, torch {place['torch']}",
        "",
        *columns(heads, list(map(_cells, report["rows"]))),
        *(f"{name} failed: {reason}" for name, reason in report["failed"].items()),
        "",
        f"over {least}: over the same method with {least} at once",
        f"same output: as {REFERENCE} (of ours in 8 or 4 bits: that in as many) with {least}",
        *(
            ratio_line(f"{ratio['method']} / {ratio['baseline']}, {ratio['at_once']} at once", ratio)
            for ratio in report["ratios"]
        ),
    ])  # fmt: skip


def _cells(row: Report) -> list[str]:
    rate, gain = row["tokens_per_second"], row["of_least"]
    return [
        row["name"],
        row["target"] or "",
        str(row["at_once"]),
        f"{rate['value']:.1f}",
        interval(rate, 1),
        f"{gain['value']:.2f}",
        interval(gain),
        f"{row['same_output']:.1%}",
    ]


if __name__ == "__main__":
    sys.exit(main())
