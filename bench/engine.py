"""``python -m bench.engine`` (``make bench-gpu``): what a step of our engine costs, whatever is drafted.

The model has the shape of a known one and random weights, so nothing has to be downloaded; ``--model`` takes another.
Steps of several tokens are timed in turn, in each type of weights, llama.cpp beside ours where it is given: step time
against the time that the memory needs to deliver the weights once. ``specdec profile`` and ``specdec simulate`` tell
what comes of it with drafts.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from bench.command import Report, columns, command, environment, interval, numbers, ratio_line, to_json, words
from bench.shapes import SHAPES, bytes_read, random_model, save
from bench.statistics import middle
from ianvs_specdec.backends.quantization import BUILT_IN
from ianvs_specdec.benchmarks.files import positive
from ianvs_specdec.common.types import ENGINES

ROWS = (1, 8, 60)
"""Tokens of a step: none drafted, a chain of 7, and a dynamic tree of EAGLE-2."""
LARGE = 1 << 30
"""Bytes whose sum shows how fast the memory is: several times what a large cache holds."""
STEPS_IN_TURN = 5
"""Steps that one computes before it is another's turn; the first is not counted: the caches hold what others left."""
PROMPT = "prompt"


class Stepping(Protocol):
    """What is timed. ``step`` gives the seconds of one step of ``rows`` tokens after the prompt, with the logits of
    each, which is then dropped; of the prompt itself where ``rows`` is 0."""

    name: str

    def step(self, rows: int) -> float: ...


class Ours:
    """Our engine's target. ``wait`` returns when the device has done what it was given."""

    def __init__(self, target: Any, name: str, prompt: Sequence[int], wait: Callable[[], None]) -> None:
        self.name, self.target = name, target
        self._ids, self._wait = list(prompt), wait
        self._state: Any = None

    def step(self, rows: int) -> float:
        import torch

        from ianvs_specdec.engine import TokenTree
        from ianvs_specdec.engine.contracts import prompt_chunks

        with torch.inference_mode():
            if self._state is None or not rows:
                self._state = self.target.open()
                prompt = prompt_chunks(self._ids, self.target.prompt_rows)
                seconds = self._timed(lambda: [self.target.step([(self._state, piece)]) for piece in prompt])
                if not rows:
                    return seconds
            tree = TokenTree.chain(self._ids[0], self._ids[1:rows])
            return self._timed(lambda: self.target.step([(self._state, tree)]))

    def _timed(self, work: Callable[[], Any]) -> float:
        self._wait()
        started = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - started


class Theirs:
    """llama.cpp in a process of its own."""

    def __init__(self, driver: Any, prompt: Sequence[int]) -> None:
        self.name, self._driver, self._ids = driver.name, driver, list(prompt)

    def step(self, rows: int) -> float:
        return float(self._driver.step(self._ids, rows))


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    return command("bench.engine", lambda: _run(options), options.out, table, {"engine.json": to_json})


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.engine", description=__doc__.split("\n\n")[0] if __doc__ else None)
    add = parser.add_argument
    floats = ("bfloat16", "float16", "float32")
    add("--shape", choices=tuple(SHAPES), default="7b")
    add("--model", type=Path, metavar="DIR", help="a model of your own in place of a shape")
    add("--device", default="cuda")
    add("--dtype", choices=floats, default="bfloat16", help="of the weights that are not quantized (bfloat16)")
    add(
        "--quantization", type=words("none", *BUILT_IN), default=["none"], metavar="A,B", help="none, int8, int4 (none)"
    )
    add("--engine", type=words(*ENGINES), default=["auto"], metavar="A,B", help=f"{', '.join(ENGINES)} (auto)")
    add("--llamacpp", metavar="PYTHON", help="Python of an environment that has llama-cpp-python, to measure it too")
    add("--threads", type=int, metavar="N", help="CPU threads of each engine")
    add("--rows", type=numbers, default=list(ROWS), metavar="A,B", help="tokens of a step (1,8,60)")
    add("--prompt", type=positive, default=256, metavar="N", help="prompt tokens (256)")
    add("--repeats", type=positive, default=5, metavar="R", help="turns of each (5)")
    add("--out", type=Path, default=Path("runs") / "bench-gpu", metavar="DIR")
    options = parser.parse_args(argv)
    if 1 not in options.rows or max(options.rows) > options.prompt:
        parser.error("--rows must hold 1, which all others are compared with, and none above --prompt")
    return options


def _run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    options.out.mkdir(parents=True, exist_ok=True)
    if options.threads:
        torch.set_num_threads(options.threads)
    cuda = options.device.startswith("cuda")
    # A CPU has done what it was given when the call returns.
    wait = torch.cuda.synchronize if cuda else lambda: None
    with ExitStack() as stack:
        model, folder = _model(options, stack)
        prompt = [1 + i % (model.config.vocab_size - 1) for i in range(options.prompt)]
        ours = list(_ours(options, model, prompt, wait))
        theirs = dict(_theirs(options, folder, prompt, stack))
        steps = _times(options, [*(entry for entry, _ in ours), *theirs.values()])
    bandwidth = _bandwidth(torch, options.device, wait)
    place = str(torch.cuda.get_device_name(options.device)) if cuda else options.device
    return {
        "shape": str(options.model or options.shape),
        "environment": {**environment(), "device": place, "dtype": options.dtype},
        "settings": {name: getattr(options, name) for name in ("prompt", "rows", "repeats")},
        "bandwidth": bandwidth,
        "floors": {entry.name: bytes_read(model, quantization) / bandwidth for entry, quantization in ours},
        "targets": {entry.name: entry.target.kind for entry, _ in ours},
        "beside": [(entry.name, theirs[kind or "none"].name) for entry, kind in ours if (kind or "none") in theirs],
        "steps": steps,
    }


def _model(options: argparse.Namespace, stack: ExitStack) -> tuple[Any, Path]:
    """The model, and its folder, where one is needed."""
    if options.model is not None:
        from bench.options import load

        return load(options)[0], options.model
    model = random_model(options.shape, options.dtype, options.device)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.out)))
    if options.llamacpp:
        save(model, folder / options.shape)
    return model, folder / options.shape


def _ours(
    options: argparse.Namespace, model: Any, prompt: list[int], wait: Callable[[], None]
) -> Iterator[tuple[Ours, str | None]]:
    """Our engine in every type of weights, with the quantization of each."""
    from ianvs_specdec.targets.registry import create_target

    labels = set()
    for engine in options.engine:
        for name in options.quantization:
            quantization = None if name == "none" else name
            # transformers' engine rounds the model itself, and the next target needs its weights.
            own = copy.deepcopy(model) if quantization and engine == "transformers" else model
            target = create_target(own, quantization=quantization, engine=engine)
            label = f"ours {quantization or options.dtype}, {target.kind}"
            # Two engines may come to the same target.
            if label not in labels:
                labels.add(label)
                yield Ours(target, label, prompt, wait), quantization


def _theirs(
    options: argparse.Namespace, folder: Path, prompt: list[int], stack: ExitStack
) -> Iterator[tuple[str, Theirs]]:
    """llama.cpp with the same weights, in the type of the same width as each quantization."""
    if not options.llamacpp:
        return
    from bench import peers

    files = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.out)))
    chosen = argparse.Namespace(**{**vars(options), "out": files})
    for name in options.quantization:
        kind = peers.QUANTIZED_TYPES.get(name) or peers.GGUF_TYPES[options.dtype]
        file = peers.gguf(chosen, folder, kind)
        positions = options.prompt + max(options.rows)
        driver = peers.llamacpp(chosen, file, f"{peers.LLAMACPP} {kind}", positions, stack)
        yield name, Theirs(driver, prompt)


def _times(options: argparse.Namespace, entries: Sequence[Stepping]) -> dict[str, dict[str, list[float]]]:
    """Per entry and what is computed (the prompt, or a number of rows), the seconds of each turn."""
    keys = [PROMPT, *map(str, options.rows)]
    found: dict[str, dict[str, list[float]]] = {entry.name: {key: [] for key in keys} for entry in entries}
    for entry in entries:
        entry.step(0)
        entry.step(1)
    for turn in range(options.repeats):
        start = turn % len(entries)
        taking_turns = [*entries[start:], *entries[:start]]
        for entry in taking_turns:
            found[entry.name][PROMPT].append(entry.step(0))
        for rows in options.rows:
            for entry in taking_turns:
                seconds = [entry.step(rows) for _ in range(STEPS_IN_TURN)]
                found[entry.name][str(rows)].append(median(seconds[1:]))
    return found


def _bandwidth(torch: Any, device: str, wait: Callable[[], None]) -> float:
    """Bytes per second that a sum over a large tensor reads: what the memory gives in practice."""
    large = torch.ones(LARGE // 4, device=device)
    large.sum()
    times = []
    for _ in range(10):
        wait()
        started = time.perf_counter()
        large.sum()
        wait()
        times.append(time.perf_counter() - started)
    return float(large.nbytes / min(times))


def table(report: Report) -> str:
    place, settings = report["environment"], report["settings"]
    heads = ["", "tokens", "ms", "95 %", "of one", "of the floor"]
    lines = [
        f"{report['shape']}, {place['dtype']}, {place['device']}, {place['processor']}, {place['threads']} threads, "
        f"torch {place['torch']}: the memory gives {report['bandwidth'] / 1e9:.1f} GB/s",
        f"a prompt of {settings['prompt']} tokens, and steps behind it; medians of {settings['repeats']} turns",
        "",
        *columns(heads, list(_steps(report))),
    ]
    lines += ["", *_ratios(report)] if report["beside"] else []
    return "\n".join(lines)


def _steps(report: Report) -> Iterator[list[str]]:
    for name, times in report["steps"].items():
        one, floor = median(times["1"]), report["floors"].get(name)
        for key, seconds in times.items():
            found = middle([1e3 * each for each in seconds])
            step = key != PROMPT
            above = f"{found.value / 1e3 / floor:.2f}" if floor and step else ""
            of_one = f"{found.value / 1e3 / one:.2f}" if step else ""
            yield [name, key, f"{found.value:.3f}", interval(vars(found)), of_one, above]


def _ratios(report: Report) -> Iterator[str]:
    """How many times as fast ours is, of the same turn."""
    for name, other in report["beside"]:
        for key, seconds in report["steps"][name].items():
            found = middle([theirs / own for own, theirs in zip(seconds, report["steps"][other][key], strict=True)])
            what = key if key == PROMPT else f"{key} rows" if key != "1" else "autoregressive step"
            yield ratio_line(f"{name} / {other}, {what}", vars(found))


if __name__ == "__main__":
    sys.exit(main())
