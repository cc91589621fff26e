"""``python -m bench.simulation``: how far the simulator is off the real engine.

The same requests come at the same times to the engine and to the simulator, at every rate and with every length. What
the simulator knows is a cost table of this machine, measured just before (or ``--emulate FILE``: the stated table whose
speed the engine then has), and which drafts were right when each prompt was decoded alone. Both see the same prompts
and the same output lengths; which draft is right is as recorded, and drawn where that does not tell. Rates are shares
of what the machine does without speculation. A shared machine is faster at some moments than at others: before and
after each point the same batch is decoded without speculation, and the simulator is told the machine's pace then.
Prints throughput and latency of both, and writes ``simulation.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from bench.command import EXAMPLE, SETS, command, progress
from bench.environment import environment
from bench.opened import Opened
from bench.options import eos_of, load
from bench.prompts import read_requests
from ianvs_specdec import lengths
from ianvs_specdec.records.identity import write_atomically

LENGTHS = ("fixed:0", "fixed:2", "fixed:4", "fixed:8", "goodput")
SHARES = (0.3, 0.6, 0.9, 1.2, 1.6)
RECORDED_WITH = "fixed:8"
"""The length with which acceptance is recorded; those that are compared are others or meet other requests beside."""
LUCKS = 10
"""Simulations of a point. The engine's answers are the same in every run, so that it has one outcome; what the
simulator draws for 60 of them varies by several percent."""
PACED_BY = 16
"""Requests of the batch that tells the machine's pace: about half a second on the embedded model."""
BARS = {"throughput": 0.05, "p50": 0.05, "p99": 0.10}


@dataclass(frozen=True)
class Arrival:
    """When a request comes, in seconds, and the place of its prompt."""

    time: float
    prompt: int


@dataclass
class Measured:
    """Tokens per second until the last answer, and the percentiles of latency in seconds."""

    throughput: float
    p50: float
    p99: float

    def stretched(self, by: float) -> Measured:
        """The same where all took ``by`` times as long."""
        return Measured(self.throughput / by, self.p50 * by, self.p99 * by)


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    return command("bench.simulation", lambda: _run(options), options.out, _table, _write)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.simulation", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    models = EXAMPLE / "models"
    add("--model", type=Path, default=models / "cloud", metavar="DIR", help="target (the embedded cloud model)")
    add("--head", type=Path, default=models / "cloud-eagle", metavar="DIR", help="its EAGLE head")
    add("--emulate", type=Path, metavar="FILE", help="cost table whose speed the engine is to have")
    add("--scale", type=float, metavar="S", help="by which the table is stretched (default: as far as is needed)")
    add("--lengths", type=lambda text: text.split(","), default=list(LENGTHS), metavar="A,B")
    add("--shares", type=lambda text: [float(part) for part in text.split(",")], default=list(SHARES), metavar="A,B",
        help="rates as shares of what is done without speculation (0.3,0.6,0.9,1.2,1.6)")  # fmt: skip
    add("--requests", type=int, default=60, metavar="N", help="of each point (60)")
    add("--limit", type=int, default=16, metavar="N", help="prompts of each file (16)")
    add("--max-new-tokens", type=int, default=64, metavar="N")
    add("--seconds", type=float, default=60.0, metavar="S", help="at most for the cost table (60)")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=1, metavar="N")
    add("--out", type=Path, default=Path("runs") / "bench", metavar="DIR")
    parser.set_defaults(dtype="float32", device="cpu", engine="auto")
    return parser.parse_args(argv)


def _run(options: argparse.Namespace) -> dict[str, Any]:
    from ianvs_specdec.engine import costs as tables
    from ianvs_specdec.engine.emulation import Emulation, scale_for
    from ianvs_specdec.engine.loop import MOST_AT_ONCE
    from ianvs_specdec.load.simulation.workload import read
    from ianvs_specdec.targets.profiling import profile
    from ianvs_specdec.targets.registry import target_of

    model, tokenizer = load(options)
    target = target_of(model, consume=True)
    settings = {"head": str(options.head), "tree": "chain", "depth": 16}
    opened = Opened.of(target, "eagle", settings, eos_of(model), options.max_new_tokens)
    prompts = [r.ids for path in SETS for r in read_requests(path, tokenizer, options.limit, 1024)]
    engine = _Engine(opened, prompts)
    options.out.mkdir(parents=True, exist_ok=True)
    traces = options.out / "simulation-traces.jsonl"
    write_atomically(traces, "".join(json.dumps(row) + "\n" for row in engine.record()))
    recorded = read(traces)
    own = None if options.emulate and options.scale else profile(target, opened.drafter, options.seconds)
    costs = tables.read(options.emulate) if options.emulate else own
    assert costs is not None
    # The engine reads prompts in pieces of this target's size, whatever the table says.
    costs = replace(costs, prompt_rows=target.prompt_rows)
    scale = 1.0
    if options.emulate:
        scale = options.scale or (scale_for(costs, own, MOST_AT_ONCE) if own is not None else 1.0)
    full = _simulated(costs, "fixed:0", _batch(2 * MOST_AT_ONCE, prompts), recorded, options)
    capacity = full.throughput / (sum(one.output for one in recorded) / len(recorded))
    points, overruns, steps = [], 0, 0
    pace = None if options.emulate else _Pace(engine, costs, _batch(PACED_BY, prompts), recorded, options)
    for share in options.shares:
        arrivals = _arrivals(capacity * share, options.requests, len(prompts), options.seed)
        for length in options.lengths:
            meter = Emulation(costs, scale) if options.emulate else None
            real = engine.serve(lengths.create(length), [Arrival(a.time * scale, a.prompt) for a in arrivals], meter)
            real = real.stretched(1 / scale)
            slower = pace.since() if pace else 1.0
            coming = [Arrival(a.time / slower, a.prompt) for a in arrivals]
            simulated = _simulated(costs, length, coming, recorded, options).stretched(slower)
            off = {name: getattr(simulated, name) / getattr(real, name) - 1 for name in BARS}
            points.append({
                "length": length, "share": share, "rate": capacity * share, "slower": slower,
                "real": vars(real), "simulated": vars(simulated), "off": off,
            })  # fmt: skip
            progress(len(points), len(options.shares) * len(options.lengths), "points")
            if meter is not None:
                overruns, steps = overruns + meter.overruns, steps + meter.steps
    emulated = {"machine": costs.machine, "scale": scale, "steps": steps, "overruns": overruns}
    return {
        "environment": environment(),
        "model": str(options.model),
        "emulated": emulated if options.emulate else None,
        "costs": costs.to_json(),
        "points": points,
        "within": {name: sum(abs(point["off"][name]) <= bar for point in points) for name, bar in BARS.items()},
    }


def _arrivals(rate: float, count: int, prompts: int, seed: int) -> list[Arrival]:
    chance, now, found = Random(f"arrivals {seed}"), 0.0, []
    for _ in range(count):
        now += chance.expovariate(rate)
        found.append(Arrival(now, chance.randrange(prompts)))
    return found


def _batch(count: int, prompts: Sequence[list[int]]) -> list[Arrival]:
    """So many requests at once."""
    return [Arrival(0.0, number % len(prompts)) for number in range(count)]


class _Pace:
    """How long the machine takes, in times of what the table says: by a batch before and one after what is measured."""

    def __init__(
        self,
        engine: _Engine,
        costs: Any,
        batch: Sequence[Arrival],
        recorded: Sequence[Any],
        options: argparse.Namespace,
    ) -> None:
        self._engine, self._batch = engine, batch
        self._wanted = _simulated(costs, "fixed:0", batch, recorded, options).throughput
        self._before = self._now()

    def since(self) -> float:
        """The mean over the time since it was last asked."""
        before, self._before = self._before, self._now()
        return (before + self._before) / 2

    def _now(self) -> float:
        return self._wanted / self._engine.serve(lengths.create("fixed:0"), self._batch, None).throughput


class _Engine:
    """The real engine, and requests to it."""

    def __init__(self, opened: Opened, prompts: Sequence[list[int]]) -> None:
        self._opened, self._prompts = opened, prompts

    def record(self) -> Generator[dict[str, Any], None, None]:
        """Each prompt alone, as ``specdec decode`` would write it."""
        from ianvs_specdec.engine.loop import Engine

        for ids in self._prompts:
            engine, request = Engine(self._opened.target, lengths.create(RECORDED_WITH)), self._opened.request(ids)
            engine.add(request)
            while engine.busy:
                engine.step()
            decoded = request.result()
            steps = [msgspec.structs.asdict(step) for step in decoded.trace.steps]
            yield {"prompt": ids, "output": [*ids, *decoded.token_ids], "steps": steps}

    def serve(self, length: Any, arrivals: Sequence[Arrival], meter: Any) -> Measured:
        from ianvs_specdec.engine.loop import Engine

        engine = Engine(self._opened.target, length, meter=meter)
        latencies, tokens, last = [], 0, 0.0
        ended: dict[int, float] = {}
        began = time.perf_counter()
        coming = list(reversed(arrivals))
        while coming or engine.busy:
            now = time.perf_counter() - began
            if not engine.busy and coming[-1].time > now:
                time.sleep(coming[-1].time - now)
            while coming and coming[-1].time <= time.perf_counter() - began:
                arrival = coming.pop()

                def told(ids: list[int], key: int = len(coming)) -> None:
                    ended[key] = time.perf_counter() - began

                engine.add(self._opened.request(self._prompts[arrival.prompt], on_tokens=told))
            for request in engine.step():
                tokens += len(request.result().token_ids)
        for key, arrival in enumerate(reversed(arrivals)):
            latencies.append(ended[key] - arrival.time)
            last = max(last, ended[key])
        return _measured(tokens, last, latencies)


def _simulated(
    costs: Any, policy: str, arrivals: Sequence[Arrival], recorded: Sequence[Any], options: argparse.Namespace
) -> Measured:
    """The mean of several simulations, each with luck of its own."""
    found = [_once(costs, policy, arrivals, recorded, options.max_new_tokens, luck) for luck in range(LUCKS)]
    return Measured(*(sum(getattr(one, name) for one in found) / LUCKS for name in BARS))


def _once(
    costs: Any, policy: str, arrivals: Sequence[Arrival], recorded: Sequence[Any], most: int, luck: int
) -> Measured:
    """``most``: tokens of an answer as it is asked for. A draft may go beyond the end that the answer turns out to
    have, and that takes its time."""
    import simpy

    from ianvs_specdec.engine.loop import MOST_AT_ONCE
    from ianvs_specdec.load.simulation.server import Server
    from ianvs_specdec.load.simulation.workload import Workload

    env, over, chance = simpy.Environment(), [], Random(f"luck {luck}")
    server = Server(env, costs, lengths.create(policy), over.append, at_once=MOST_AT_ONCE, queue=len(arrivals))

    def come() -> Generator[Any, Any, None]:
        for arrival in arrivals:
            yield env.timeout(max(0.0, arrival.time - env.now))
            server.ask(Workload([recorded[arrival.prompt]], max_tokens=most).draw(chance))

    env.process(come())
    env.run()
    latencies = [request.last - request.arrived for request in over]
    return _measured(sum(request.done for request in over), max(request.last for request in over), latencies)


def _measured(tokens: int, seconds: float, latencies: Sequence[float]) -> Measured:
    import numpy as np

    middle, late = np.percentile(latencies, (50, 99))
    return Measured(tokens / seconds, float(middle), float(late))


def _table(report: dict[str, Any]) -> str:
    lines = []
    if report["emulated"]:
        told = report["emulated"]
        lines.append(f"EMULATED: {told['machine']}, times {told['scale']:g}; {told['overruns']} of {told['steps']} "
                     "steps took longer")  # fmt: skip
    lines.append(f"{'length':<10}{'share':>6}{'req/s':>8}{'token/s':>10}{'off':>8}{'p50 s':>9}{'off':>8}"
                 f"{'p99 s':>9}{'off':>8}{'pace':>7}")  # fmt: skip
    for point in report["points"]:
        real, off = point["real"], point["off"]
        cells = "".join(
            f"{real[name]:>{width}.4g}{off[name]:>+8.1%}"
            for name, width in (("throughput", 10), ("p50", 9), ("p99", 9))
        )
        lines.append(f"{point['length']:<10}{point['share']:>6.2f}{point['rate']:>8.3g}{cells}{point['slower']:>7.2f}")
    count = len(report["points"])
    told = ", ".join(f"{name} within {bar:.0%}: {report['within'][name]} of {count}" for name, bar in BARS.items())
    return "\n".join([*lines, told])


def _write(out: Path, report: dict[str, Any]) -> list[Path]:
    path = out / "simulation.json"
    write_atomically(path, json.dumps(report, indent=1) + "\n")
    return [path]


if __name__ == "__main__":
    sys.exit(main())
