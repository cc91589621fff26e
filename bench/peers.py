"""llama.cpp, vLLM, eagle-llm and lade, each in a process of the environment that has it.

vLLM and the published packages run in the workers of their back ends, llama.cpp in ``llamacpp_worker.py``. All speak
the protocol of ``ianvs_specdec.backends.process``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench.statistics import Run
from ianvs_specdec.backends.official.backend import WORKER as PUBLISHED
from ianvs_specdec.backends.official.backend import steps_of
from ianvs_specdec.backends.process import WorkerProcess, environment
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf.exporting import TYPES, export_gguf

LLAMACPP = "llama.cpp"
LLAMACPP_WORKER = Path(__file__).with_name("llamacpp_worker.py")
VLLM_WORKER = PUBLISHED.parents[1] / "vllm" / "worker.py"
GGUF_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
QUANTIZED_TYPES = {"int8": "q8_0", "int4": "q4_0"}
"""llama.cpp's type of weights of the same width as ours."""
PACKAGES = {"eagle-llm": "venv-eagle", "lade": "venv-lade"}
"""Package -> its environment in the folder ``--official``, with the transformers that it was written for."""
BLOCKS = 512
"""Positions by which vLLM's cache may be larger than asked: its blocks are coarse."""

Lines = list[Mapping[str, Any]]


class Peer:
    """A worker, started when it is first asked, so that one that cannot start fails as its row does."""

    def __init__(self, name: str, command: Sequence[str], arguments: Mapping[str, Any], threads: int) -> None:
        self.name = name
        self._command, self._arguments, self._threads = command, arguments, threads
        self._worker: WorkerProcess | None = None

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def start(self) -> WorkerProcess:
        """The running worker. Raises ``UserError`` where it does not start."""
        if self._worker is None:
            self._worker = WorkerProcess(self.name, self._command, self._arguments, environment(self._threads))
        return self._worker

    def ask(self, prompt: list[int], **sampling: Any) -> Lines:
        """The lines that answer the request."""
        lines: Lines = []

        def take(line: Mapping[str, Any]) -> bool:
            lines.append(line)
            return True

        self.start().ask(prompt, sampling, take)
        return lines

    def decode(self, prompt: list[int], max_tokens: int, eos_ids: list[int], **more: Any) -> Run:
        """One prompt, greedy."""
        self.start()
        asked = time.monotonic()
        lines = self.ask(prompt, max_tokens=max_tokens, stop_token_ids=eos_ids, **more)
        started = lines[-1].get("started", asked)
        tokens = [token for line in lines for token in line["tokens"]]
        first = next(line["time"] for line in lines if line["tokens"]) - started
        prefills, steps = _prefills_and_steps(lines, len(tokens))
        return Run(tokens, lines[-1]["time"] - started, steps + prefills, prefills, first)

    def decode_all(
        self, prompts: Sequence[list[int]], at_once: int, max_tokens: int, eos_ids: list[int]
    ) -> tuple[list[list[int]], float]:
        """The outputs, with ``at_once`` requests under way, and the seconds until the last one's end."""
        self.start()
        started = time.monotonic()
        with ThreadPoolExecutor(at_once) as pool:
            runs = list(pool.map(lambda prompt: self.decode(prompt, max_tokens, eos_ids, temperature=0), prompts))
        return [run.token_ids for run in runs], time.monotonic() - started

    def memory(self) -> int | None:
        """Bytes of weights and caches."""
        return self._worker.ready.get("memory") if self._worker is not None else None

    def resident(self) -> int | None:
        """The most memory that the process has had, in bytes; None on systems that do not tell."""
        if self._worker is None:
            return None
        try:
            lines = Path(f"/proc/{self._worker.pid}/status").read_text(encoding="utf-8").splitlines()
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def _prefills_and_steps(lines: Lines, tokens: int) -> tuple[int, int]:
    """Passes over the prompt that verify nothing, and steps. Where nothing is drafted each further token is a step."""
    drafts = lines[-1].get("drafts")
    if isinstance(drafts, Mapping):
        counts = [len(line["tokens"]) for line in lines]
        return drafts["prefills"], len(steps_of(counts, counts, drafts))
    return 1, len(drafts) if drafts else tokens - 1


class LlamaCpp(Peer):
    """llama.cpp serves many requests in a loop of its own, and computes single steps."""

    def decode_all(
        self, prompts: Sequence[list[int]], at_once: int, max_tokens: int, eos_ids: list[int]
    ) -> tuple[list[list[int]], float]:
        (answer,) = self.ask([], prompts=prompts, at_once=at_once, max_tokens=max_tokens, stop_token_ids=eos_ids)
        return answer["outputs"], answer["seconds"]

    def step(self, prompt: list[int], rows: int) -> float:
        """Seconds of one step of ``rows`` tokens after the prompt; of the prompt itself where there are 0."""
        (answer,) = self.ask(prompt, rows=rows)
        return float(answer["seconds"])


def llamacpp(
    options: argparse.Namespace, file: Path, name: str, positions: int, stack: ExitStack, at_once: int = 1
) -> LlamaCpp:
    """llama.cpp with the weights in ``file``. ``stack`` ends it."""
    arguments = {"model": str(file), "dtype": options.dtype, "positions": positions, "at_once": at_once}
    threads = _threads(options)
    command = [options.llamacpp, str(LLAMACPP_WORKER)]
    return stack.enter_context(closing(LlamaCpp(name, command, {**arguments, "threads": threads}, threads)))


def gguf(options: argparse.Namespace, folder: Path, kind: str) -> Path:
    """The model in ``folder`` as a file of a type of weights, made in the output folder. What ``export_gguf`` does not
    write, llama.cpp makes of what it does."""
    options.out.mkdir(parents=True, exist_ok=True)
    file: Path = options.out / f"{folder.resolve().name}-{kind}.gguf"
    if kind in TYPES:
        export_gguf(folder, file, kind)
        return file
    source = gguf(options, folder, GGUF_TYPES[options.dtype])
    command = [options.llamacpp, str(LLAMACPP_WORKER), "quantize", str(source), str(file), kind]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise UserError(f"llama.cpp cannot write {file}: {lines[-1] if lines else f'status {done.returncode}'}")
    return file


def vllm(options: argparse.Namespace, head: Path | None, positions: int, stack: ExitStack, at_once: int = 1) -> Peer:
    """vLLM with a head or autoregressive, for up to ``at_once`` requests of ``positions`` tokens; ``stack`` ends it. It
    computes every prompt anew, as all others do: its cache of prefixes would answer what it has read before."""
    layout = json.loads((options.model / "config.json").read_text(encoding="utf-8"))
    heads = layout.get("num_key_value_heads") or layout["num_attention_heads"]
    head_dim = layout.get("head_dim") or layout["hidden_size"] // layout["num_attention_heads"]
    arguments: dict[str, Any] = {
        "model": str(options.model),
        "dtype": options.dtype,
        "max_model_len": positions,
        "enable_prefix_caching": False,
        "max_num_seqs": at_once,
    }
    if options.device == "cpu":
        # Room for the sequences in the model's layers and those of a head, twice.
        width = 4 if options.dtype == "float32" else 2
        layers = layout["num_hidden_layers"] + 4
        room = 2 * at_once * (positions + BLOCKS)
        arguments["kv_cache_memory_bytes"] = room * layers * 2 * heads * head_dim * width
    if head is not None:
        method = "eagle3" if is_eagle3(head) else "eagle"
        arguments["speculative_config"] = {"method": method, "model": str(head), "num_speculative_tokens": 5}
    name = "vLLM" if head is None else f"vLLM {head.name}"
    return stack.enter_context(closing(Peer(name, [options.vllm, str(VLLM_WORKER)], arguments, _threads(options))))


def published(options: argparse.Namespace, package: str, eos_ids: list[int], stack: ExitStack) -> Peer:
    """A published package, unpatched, in its environment below ``--official``. Raises ``UserError`` without one."""
    from ianvs_specdec.backends.official.layout import convert_head, convert_model

    python = options.official / PACKAGES[package] / "bin" / "python"
    if not python.exists():
        raise UserError(f"there is no {python}: `make bench-official` makes the environments of the packages")
    out = options.out.resolve()
    arguments = {"model": str(convert_model(options.model, out / "model", eos_ids)), "dtype": options.dtype}
    if package == "eagle-llm":
        arguments["head"] = str(convert_head(eagle_head(options), out / "head"))
    threads = _threads(options)
    command = [str(python.absolute()), str(PUBLISHED), package]
    return stack.enter_context(closing(Peer(package, command, {**arguments, "threads": threads}, threads)))


def eagle_head(options: argparse.Namespace) -> Path:
    """The head that eagle-llm can run: one of EAGLE-1 or EAGLE-2."""
    for head in options.eagle:
        if not is_eagle3(head):
            return Path(head)
    raise UserError("--official: eagle-llm needs a head of EAGLE-1 or EAGLE-2: name one with --eagle")


def is_eagle3(head: Path) -> bool:
    return "draft_vocab_size" in json.loads((head / "config.json").read_text(encoding="utf-8"))


def _threads(options: argparse.Namespace) -> int:
    return options.threads or os.cpu_count() or 1
