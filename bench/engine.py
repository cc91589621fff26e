"""``python -m bench.engine`` (``make bench-gpu``): time of a step of our engine by number of tokens.

The model has a known shape and random weights, so that nothing is downloaded; ``--model`` names another. Steps are
timed for each type of weights, interleaved with llama.cpp if given, and compared with the time to read the weights from
memory once. ``specdec profile`` and ``specdec simulate`` predict the effect of drafts.
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
from bench.statistics import middle
from ianvs_specdec.backends.quantization import BUILT_IN
from ianvs_specdec.benchmarks.files import positive
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import ENGINES

NUMBERS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    "vocab_size",
)
SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "qwen2.5-0.5b": ("qwen2", (896, 4864, 24, 14, 2, 151936)),
    "qwen2.5-1.5b": ("qwen2", (1536, 8960, 28, 12, 2, 151936)),
    "7b": ("llama", (4096, 11008, 32, 32, 32, 32000)),
    "tiny": ("llama", (64, 128, 7, 4, 2, 384)),
}
"""Family and ``NUMBERS`` of Qwen2.5 0.5B and 1.5B, Llama 2 7B, and a model for tests."""
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "rms_norm_eps": 1e-6,
    },
    "llama": {},
}
POSITIONS = 4096
DEVIATION = 0.02


def random_model(shape: str, dtype: str, device: str) -> Any:
    """A causal LM of transformers on ``device``. Raises UserError without a GPU."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device cuda: no GPU here; try --device cpu --shape tiny")
    family, sizes = SHAPES[shape]
    settings = {**FAMILIES[family], **dict(zip(NUMBERS, sizes, strict=True))}
    config = AutoConfig.for_model(
        family, **settings, max_position_embeddings=POSITIONS, eos_token_id=None, bos_token_id=1
    )
    with torch.device(device), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and not name.endswith("bias"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=DEVIATION)
    return model


def save(model: Any, folder: Path) -> None:
    """Save the model to a folder that can be exported to GGUF, with a tokenizer of bytes and one merge, which llama.cpp
    requires."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))


def bytes_read(model: Any, quantization: str | None) -> int:
    """Bytes of weights that a step of one token reads: all except the input embedding. int4 has 4.5 bits per weight
    with its scales, and an output embedding of 8 bits."""
    output = model.get_output_embeddings().weight
    layers = sum(p.numel() for p in model.parameters()) - model.get_input_embeddings().weight.numel()
    if output is not model.get_input_embeddings().weight:
        layers -= output.numel()
    wide = 8.0 * output.element_size()
    bits, output_bits = {None: (wide, wide), "int8": (8.0, 8.0), "int4": (4.5, 8.0)}[quantization]
    return int((layers * bits + output.numel() * output_bits) / 8)


ROWS = (1, 8, 60)
"""Tokens of a step: no draft, a chain of 7, a dynamic tree of EAGLE-2."""
LARGE = 1 << 30
"""Bytes to sum for the memory bandwidth: several times a large cache."""
STEPS_IN_TURN = 5
"""Consecutive steps per turn. The first is not counted, since others have replaced the caches' content."""
PROMPT = "prompt"


class Stepping(Protocol):
    """``step`` returns the seconds of one step of ``rows`` tokens after the prompt, with the logits of each; of the
    prompt itself if ``rows`` is 0."""

    name: str

    def step(self, rows: int) -> float: ...


class Ours:
    """Our engine's target. ``wait`` synchronizes with the device."""

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


class LlamaCppSteps:
    """llama.cpp in a separate process."""

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
    add("--model", type=Path, metavar="DIR", help="a model to use instead of a shape")
    add("--device", default="cuda")
    add("--dtype", choices=floats, default="bfloat16", help="of unquantized weights (bfloat16)")
    add(
        "--quantization", type=words("none", *BUILT_IN), default=["none"], metavar="A,B", help="none, int8, int4 (none)"
    )
    add("--engine", type=words(*ENGINES), default=["auto"], metavar="A,B", help=f"{', '.join(ENGINES)} (auto)")
    add("--llamacpp", metavar="PYTHON", help="Python of an environment with llama-cpp-python, to measure it too")
    add("--threads", type=int, metavar="N", help="CPU threads of each engine")
    add("--rows", type=numbers, default=list(ROWS), metavar="A,B", help="tokens of a step (1,8,60)")
    add("--prompt", type=positive, default=256, metavar="N", help="prompt tokens (256)")
    add("--repeats", type=positive, default=5, metavar="R", help="turns of each (5)")
    add("--out", type=Path, default=Path("runs") / "bench-gpu", metavar="DIR")
    options = parser.parse_args(argv)
    if 1 not in options.rows or max(options.rows) > options.prompt:
        parser.error("--rows must contain 1, the baseline, and nothing above --prompt")
    return options


def _run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    options.out.mkdir(parents=True, exist_ok=True)
    if options.threads:
        torch.set_num_threads(options.threads)
    cuda = options.device.startswith("cuda")
    # On a CPU calls are synchronous.
    wait = torch.cuda.synchronize if cuda else lambda: None
    with ExitStack() as stack:
        model, folder = _model(options, stack)
        prompt = [1 + i % (model.config.vocab_size - 1) for i in range(options.prompt)]
        ours = list(_ours(options, model, prompt, wait))
        others = dict(_llamacpp(options, folder, prompt, stack))
        steps = _times(options, [*(entry for entry, _ in ours), *others.values()])
    bandwidth = _bandwidth(torch, options.device, wait)
    place = str(torch.cuda.get_device_name(options.device)) if cuda else options.device
    return {
        "shape": str(options.model or options.shape),
        "environment": {**environment(), "device": place, "dtype": options.dtype},
        "settings": {name: getattr(options, name) for name in ("prompt", "rows", "repeats")},
        "bandwidth": bandwidth,
        "floors": {entry.name: bytes_read(model, quantization) / bandwidth for entry, quantization in ours},
        "targets": {entry.name: entry.target.kind for entry, _ in ours},
        "beside": [(entry.name, others[kind or "none"].name) for entry, kind in ours if (kind or "none") in others],
        "steps": steps,
    }


def _model(options: argparse.Namespace, stack: ExitStack) -> tuple[Any, Path]:
    """The model and its folder."""
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
    """Our engine with every type of weights; yields the quantization too."""
    from ianvs_specdec.targets.registry import create_target

    labels = set()
    for engine in options.engine:
        for name in options.quantization:
            quantization = None if name == "none" else name
            # Engine transformers changes the model in place.
            own = copy.deepcopy(model) if quantization and engine == "transformers" else model
            target = create_target(own, quantization=quantization, engine=engine)
            label = f"ours {quantization or options.dtype}, {target.kind}"
            # Two engines may have the same target.
            if label not in labels:
                labels.add(label)
                yield Ours(target, label, prompt, wait), quantization


def _llamacpp(
    options: argparse.Namespace, folder: Path, prompt: list[int], stack: ExitStack
) -> Iterator[tuple[str, LlamaCppSteps]]:
    """llama.cpp with the same weights, quantized to the same width."""
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
        yield name, LlamaCppSteps(driver, prompt)


def _times(options: argparse.Namespace, entries: Sequence[Stepping]) -> dict[str, dict[str, list[float]]]:
    """Seconds of each turn, per entry and prompt or number of rows."""
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
    """Memory bandwidth in bytes per second, from the sum of a large tensor."""
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
        f"torch {place['torch']}, memory bandwidth {report['bandwidth'] / 1e9:.1f} GB/s",
        f"prompt of {settings['prompt']} tokens, and steps after it; medians of {settings['repeats']} turns",
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
    """Speed of ours over the other's, paired by turn."""
    for name, other in report["beside"]:
        for key, seconds in report["steps"][name].items():
            found = middle([others / own for own, others in zip(seconds, report["steps"][other][key], strict=True)])
            what = key if key == PROMPT else f"{key} rows" if key != "1" else "autoregressive step"
            yield ratio_line(f"{name} / {other}, {what}", vars(found))


if __name__ == "__main__":
    sys.exit(main())
