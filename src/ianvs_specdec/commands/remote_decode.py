"""``specdec decode --verifier``: draft on this machine, verify on another (docs/split.md)."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.backends.split.edge.settings import (
    IN_FLIGHT,
    MODES,
    PATIENCE,
    POLICIES,
    EdgeSettings,
    read_token,
    remote_target,
)
from ianvs_specdec.commands.decode_io import (
    method_of,
    print_summary,
    read_prompts,
    row_of,
    sampling_of,
    tokenize,
    tokenizer_of,
    write,
)
from ianvs_specdec.commands.hyperparameters import folder_of
from ianvs_specdec.common.errors import UserError

if TYPE_CHECKING:
    from ianvs_specdec.backends.split.edge.decode import Answer

FIRST_PATIENCE = 30.0
"""Seconds until the first reply of the verifier."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("remote verifier").add_argument
    add("--verifier", metavar="HOST:P", help="draft here, verify with the specdec verifier at this address")
    add("--verifier-ca", type=Path, metavar="FILE", help="certificate that signed the verifier's, PEM")
    add("--token-file", type=Path, metavar="FILE", help="file with the token of this edge")
    add("--in-flight", type=int, default=IN_FLIGHT, metavar="N", help=f"concurrent drafts (default {IN_FLIGHT})")
    where = "where to draft: split = here, stream = on the verifier, auto = the faster"
    add("--mode", choices=MODES, default="auto", help=where)
    outage = "action if the verifier is unreachable (default: wait)"
    add("--outage", choices=POLICIES, default="wait", help=outage)
    patience = f"seconds until it counts as unreachable ({PATIENCE:g})"
    add("--patience", type=float, default=PATIENCE, metavar="S", help=patience)


def run(options: argparse.Namespace) -> int:
    # Before the verifier is called, to report invalid arguments early.
    method, drafting = method_of(options)
    more = {name: getattr(options, name) for name in ("mode", "in_flight", "outage", "patience")}
    settings = EdgeSettings.parse({"method": method, "options": dict(drafting), **more})
    if options.trace:
        raise UserError("--trace: with --verifier the trees are not recorded")
    sampling, prompts = sampling_of(options), read_prompts(options)
    folder = Path(drafting["draft"]) if "draft" in drafting else None
    folder = folder_of(options.model) if options.model else folder

    from ianvs_specdec.backends.split.edge.connection import Access, Connection

    connection = Connection(Access(options.verifier, read_token(options.token_file), options.verifier_ca))
    try:
        model = connection.describe(FIRST_PATIENCE)
        _set_threads(options.threads)
        target = remote_target(model, folder, options.dtype)
        edge = settings.edge(connection, model, target)
        tokenizer = tokenizer_of(folder)
        requests = tokenize(options, prompts, model.vocabulary, target.window, tokenizer)
        answers, rows = [], []
        for number, request in enumerate(requests):
            seeded = replace(sampling, seed=sampling.seed + number)
            answer = edge.decode(request.prompt, seeded, prediction=request.prediction, task=request.task)
            answers.append(answer)
            rows.append(_row(request.prompt, answer, tokenizer, request.task))
            if own := answer.split.alone:
                message = f"prompt {number}: the last {own} tokens are the draft model's own ({answer.outage_reason})"
                print(f"specdec decode: {message}", file=sys.stderr)
    finally:
        connection.close()
    write(options.out, rows)
    print_summary(answers)
    return 0


def _set_threads(threads: int | None) -> None:
    import torch

    from ianvs_specdec.backends.base import check_threads

    if threads is not None:
        check_threads(threads, "--threads")
        torch.set_num_threads(threads)


def _row(prompt: list[int], answer: Answer, tokenizer: Any, task: str) -> dict[str, Any]:
    trace = answer.trace
    network = {"bytes_up": trace.bytes_up, "bytes_down": trace.bytes_down, "rounds": len(trace.steps)}
    split = {name: getattr(answer.split, name) for name in ("ahead", "hits", "streamed", "breaks", "lost", "alone")}
    return {**row_of(prompt, answer, None, tokenizer, task), **network, **split}
