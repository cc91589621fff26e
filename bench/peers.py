"""vLLM and llama.cpp, each in a process of the environment that has it."""

from __future__ import annotations

import argparse
import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

from bench.official.process import Driver
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf.gguf import TYPES, export_gguf

LLAMACPP = "llama.cpp"
_HERE = Path(__file__).parent / "official"
VLLM_DRIVER, LLAMACPP_DRIVER = (_HERE / f"{name}_driver.py" for name in ("vllm", "llamacpp"))
_QUANTIZE = _HERE / "llamacpp_quantize.py"
GGUF_TYPES = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}
QUANTIZED_TYPES = {"int8": "q8_0", "int4": "q4_0"}
"""llama.cpp's type of weights that stands beside ours."""


def vllm(options: argparse.Namespace, head: Path | None, positions: int, stack: ExitStack, at_once: int = 1) -> Driver:
    """vLLM with a head or autoregressive, for up to ``at_once`` requests of ``positions`` tokens; ``stack`` ends it."""
    name = "vLLM" if head is None else f"vLLM {head.name}"
    arguments = ["--model", str(options.model), *([] if head is None else ["--head", str(head)])]
    return _driver(options, name, [options.vllm, str(VLLM_DRIVER), *arguments], positions, stack, at_once)


def llamacpp(
    options: argparse.Namespace, file: Path, name: str, positions: int, stack: ExitStack, at_once: int = 1
) -> Driver:
    """llama.cpp with the weights in ``file``. ``stack`` ends it."""
    command = [options.llamacpp, str(LLAMACPP_DRIVER), "--model", str(file)]
    return _driver(options, name, command, positions, stack, at_once)


def gguf(options: argparse.Namespace, folder: Path, kind: str) -> Path:
    """The model in ``folder`` as a file of a type of weights, made in the output folder. What ``export_gguf`` does not
    write, llama.cpp makes of what it does."""
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{folder.resolve().name}-{kind}.gguf"
    if kind in TYPES:
        export_gguf(folder, file, kind)
        return file
    source = gguf(options, folder, GGUF_TYPES[options.dtype])
    command = [options.llamacpp, str(_QUANTIZE), str(source), str(file), kind]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        told = done.stderr.strip().splitlines()
        raise UserError(f"llama.cpp cannot write {file}: {told[-1] if told else f'status {done.returncode}'}")
    return file


def _driver(
    options: argparse.Namespace, name: str, command: list[str], positions: int, stack: ExitStack, at_once: int
) -> Driver:
    threads = options.threads or os.cpu_count() or 1
    command = [*command, "--dtype", options.dtype, "--threads", str(threads), "--positions", str(positions)]
    log = options.out / f"{name.replace(' ', '-')}.log"
    return stack.enter_context(Driver(name, [*command, "--at-once", str(at_once)], log, threads))
