"""``specdec decode --verifier``: this machine drafts, and a verifier elsewhere decides.

The output has the columns of ``specdec decode``, and ``bytes_up`` and ``bytes_down`` (of messages, with what gRPC puts
before each; HTTP/2, TLS and TCP add theirs), ``rounds``, ``ahead`` (verdicts behind which something was drafted
already) and ``hits`` (those of them that left it in place), ``streamed`` (tokens that the verifier drafted), ``breaks``
(streams that broke) and ``lost`` (seconds without one), ``alone`` (the last tokens that are the draft model's own).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec import drafters
from ianvs_specdec.commands.prompts import read_prompts, requests_of, tokenizer_of
from ianvs_specdec.errors import UserError
from ianvs_specdec.types import Sampling

if TYPE_CHECKING:
    from ianvs_specdec.decoding import Decoded, Drafter
    from ianvs_specdec.split.edge.decode import Answer, Finish
    from ianvs_specdec.split.edge.drafts import FarTarget
    from ianvs_specdec.split.split_pb2 import Model

FIRST_PATIENCE = 30.0
"""Seconds in which a verifier has to answer at first."""
MODES = ("auto", "split", "stream")
POLICIES = ("wait", "fail", "edge")
IN_FLIGHT = 4
"""Drafts on their way at a time, unless told otherwise: more are seldom all right."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    far = parser.add_argument_group("a verifier elsewhere")
    far.add_argument("--verifier", metavar="HOST:P", help="draft here, and have specdec verifier decide there")
    far.add_argument("--verifier-ca", type=Path, metavar="FILE", help="certificate that signed the verifier's, PEM")
    far.add_argument("--token-file", type=Path, metavar="FILE", help="the token that the verifier knows this edge by")
    far.add_argument(
        "--in-flight", type=int, default=IN_FLIGHT, metavar="N", help=f"drafts on their way (default {IN_FLIGHT})"
    )
    far.add_argument(
        "--mode", choices=MODES, default="auto", help="who drafts: split = here, stream = there, auto = the faster"
    )
    far.add_argument(
        "--outage", choices=POLICIES, default="wait", help="what to do when the verifier is gone (default: wait)"
    )
    far.add_argument("--patience", type=float, default=10.0, metavar="S", help="seconds until it counts as gone (10)")


def run(options: argparse.Namespace) -> int:
    from ianvs_specdec.commands.decode import method_of, sampling_of, summarise, write

    # Everything the user may have got wrong is found before anybody is asked.
    method, settings = method_of(options)
    length = _check(options, method, settings)
    drafter = drafters.create(method, settings)
    sampling, prompts = sampling_of(options), read_prompts(options)
    folder = options.model or (Path(settings["draft"]) if "draft" in settings else None)

    from ianvs_specdec.split.edge.connection import Access, Connection
    from ianvs_specdec.split.edge.controller import Controller
    from ianvs_specdec.split.edge.decode import Edge
    from ianvs_specdec.split.edge.session import Outage

    connection = Connection(Access(options.verifier, _token(options.token_file), options.verifier_ca))
    try:
        model = connection.describe(FIRST_PATIENCE)
        target = _target(options, model, folder)
        drafter.prepare(target)  # type: ignore[arg-type]
        tokenizer = tokenizer_of(folder)
        requests = requests_of(options, prompts, model.vocabulary, target.window, tokenizer)
        outage = Outage(options.outage, options.patience)
        finish = _finish(drafter, model) if options.outage == "edge" else None
        in_flight = options.in_flight if drafter.lines else 0
        controller = Controller(length, in_flight=in_flight, mode=options.mode, beside=model.drafts)
        edge = Edge(connection, model, drafter, target, controller, outage, options.in_flight, finish)
        answers, rows = [], []
        for number, request in enumerate(requests):
            own = replace(sampling, seed=sampling.seed + number)
            answer = edge.decode(request.prompt, own, prediction=request.prediction, task=request.task)
            answers.append(answer)
            rows.append(_row(request.prompt, answer, tokenizer, request.task))
            if answer.alone:
                message = f"prompt {number}: the last {answer.alone} tokens are the draft model's own ({answer.why})"
                print(f"specdec decode: {message}", file=sys.stderr)
    finally:
        connection.close()
    write(options.out, rows)
    summarise(answers)
    return 0


def _check(options: argparse.Namespace, method: str, settings: dict[str, Any]) -> int | None:
    """The fixed length of drafts, None where it is chosen."""
    far = [name for name, known in drafters.METHODS.items() if known.far]
    if method not in far or settings.get("head"):
        reason = f"method {method} needs what the target computes, which stays with the verifier"
        raise UserError(f"{reason}; with --verifier draft with one of {', '.join(far)}")
    drafters.check(method, settings)
    if settings.get("acceptance", "coupled") != "coupled":
        raise UserError("acceptance: no probabilities travel, so with --verifier it is coupled")
    if options.trace:
        raise UserError("--trace: with --verifier the trees are not kept")
    if options.outage == "edge" and method != "draft_model":
        raise UserError("--outage edge: only a draft model can finish an answer by itself; use method draft_model")
    for name, ok, rule in (
        ("in-flight", options.in_flight >= 1, "1 or more"),
        ("patience", options.patience > 0, "> 0"),
    ):
        if not ok:
            raise UserError(f"--{name} must be {rule}")
    text = str(settings.get("length", "auto"))
    kind, _, number = text.rpartition(":")
    if text != "auto" and (kind not in ("", "fixed") or not number.isdigit()):
        raise UserError(f"length {text!r}: with --verifier it is auto or fixed:N; the verifier has policies of its own")
    return None if text == "auto" else int(number)


def _token(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8").split()[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise UserError(f"--token-file {file}: no token can be read from it") from error


def _target(options: argparse.Namespace, model: Model, folder: Path | None) -> FarTarget:
    """What drafters may ask of the target. Raises ``UserError`` for another tokenizer than the edge's."""
    import torch

    from ianvs_specdec.drafters.datastore import fingerprint
    from ianvs_specdec.llm.base import check_threads
    from ianvs_specdec.split.edge.drafts import FarTarget

    if options.threads is not None:
        check_threads(options.threads, "--threads")
        torch.set_num_threads(options.threads)
    own = fingerprint(folder) if folder is not None else ""
    if own and model.tokenizer and own != model.tokenizer:
        reason = f"{folder} has another tokenizer than {model.name}, which the verifier serves"
        raise UserError(f"{reason}: the same ids would be other tokens. Draft with a model of its family")
    return FarTarget(model.vocabulary, model.window or None, getattr(torch, options.dtype), folder)


def _finish(drafter: Drafter, model: Model) -> Finish:
    from ianvs_specdec.decoding import decode
    from ianvs_specdec.drafters.autoregressive import Autoregressive
    from ianvs_specdec.drafters.draft_model.drafter import DraftModel
    from ianvs_specdec.lengths.fixed import Fixed

    assert isinstance(drafter, DraftModel)

    def finish(tokens: Sequence[int], sampling: Sampling) -> Decoded:
        return decode(drafter.together, Autoregressive(), Fixed(0), tokens, sampling, eos_ids=model.ends)

    return finish


def _row(prompt: list[int], answer: Answer, tokenizer: Any, task: str) -> dict[str, Any]:
    from ianvs_specdec.commands.decode import row_of

    trace = answer.trace
    told = {"bytes_up": trace.bytes_up, "bytes_down": trace.bytes_down, "rounds": len(trace.steps)}
    more = {name: getattr(answer, name) for name in ("ahead", "hits", "streamed", "breaks", "lost", "alone")}
    return {**row_of(prompt, answer, None, tokenizer, task), **told, **more}
