"""What every driver does: answer requests, one JSON object per line, on standard input and output.

The first line out is ``{"versions": {package: version}}`` when the model is loaded. A request is ``{"row": {settings
of the method}, "prompt": [ids], "max_new_tokens": n, "eos_ids": [ids]}``; its answer ``{"output": [new ids],
"seconds": wall seconds of the generation alone, "steps": n, "emitted": [tokens per step], "prefills": 0 or 1,
"near_ties": [output positions], "ttft": seconds to the first token, "memory": bytes of weights and caches, "resident":
the most bytes that the process had in memory}``. Steps are the forwards of the target that verify, and each emits the
drafts it accepts and one token more. ``prefills`` is 1 where a pass over the prompt that is no step decided the first
token. Drivers leave out what they cannot tell. End of input ends the driver.

Drivers that serve many at once, up to ``--at-once``, also take ``{"prompts": [[ids], ...], "at_once": n,
"max_new_tokens": n, "eos_ids": [ids]}``: as many requests under way as that, all there from the start. The answer is
``{"outputs": [[new ids], ...], "seconds": until the last one's end, "memory": ...}``. llama.cpp's driver takes
``{"prompt": [ids], "rows": n}``, too, and answers with the ``seconds`` of one step of so many tokens behind that
prompt, or of the prompt itself where there are 0.

Runs in the environments of the packages, so it needs nothing but the standard library, and torch, to set its threads,
for packages that compute with it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

Decode = Callable[[dict[str, Any]], dict[str, Any]]


def serve(load: Callable[[argparse.Namespace], tuple[dict[str, str], Decode]], *, with_torch: bool = True) -> None:
    """``load`` gives the versions to report and the function that answers a request."""
    # The packages print: standard output is kept for answers, what they write goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # So that what they write before they fail can be read.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

    def write(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=answers, flush=True)

    options = _arguments()
    if with_torch:
        import torch

        torch.set_num_threads(options.threads)
    versions, decode = load(options)
    write({"versions": versions})
    for line in sys.stdin:
        write({**decode(json.loads(line)), "resident": _resident()})


def _resident() -> int | None:
    """The most memory that this process has had, in bytes; None on systems that do not say."""
    # Not getrusage: it begins with what the parent had when it forked.
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def versions(*packages: str) -> dict[str, str]:
    return {name: version(name) for name in (*packages, "transformers", "torch")}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--head", type=Path)
    parser.add_argument("--drafts", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--positions", type=int, default=8192)
    parser.add_argument("--at-once", type=int, default=1)
    return parser.parse_args()
