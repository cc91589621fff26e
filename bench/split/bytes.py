"""Part ``bytes``: bytes per emitted token at the socket, TLS and HTTP/2 included, as the link counts them.

A connection is made and used once before it is counted; the opening of each answer is counted, with its prompt.
``+headers`` adds the headers of IPv4 and TCP, 52 bytes a segment, of the segments with data that the link saw, and
``+acks`` a bare acknowledgement for each of them besides, which is the most that there can be.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.split.scene import decode, edge, endless_target, questions, truth_of, verifier
from ianvs_specdec.backends.child import ServerProcess
from ianvs_specdec.common.errors import UserError

HEADERS = 52
"""Bytes of IPv4 and TCP with time stamps."""
ACCEPTANCES = (0.8, 0.9)
DRAFT_LENGTH, IN_FLIGHT = 5, (1, 4)
PRESET = "fibre"
TOKENS, PROMPTS = 400, 2
HEADS = ("drafts", "TLS", "flying", "accept.", "tok/round", "up/round", "down", "B/token", "+headers", "+acks")
Row = dict[str, Any]


def measure(_: argparse.Namespace, folder: Path) -> Iterator[Row]:
    target = endless_target(folder / "target")
    truth = truth_of(target, questions(PROMPTS + 1), TOKENS + 1, folder / "truth.jsonl")
    paced = {"method": "paced", "truth": str(truth.file), "seconds": 1e-3}
    drafts = {f"right with probability {right:g}": {**paced, "right": right} for right in ACCEPTANCES}
    drafts["the target itself"] = {"method": "draft_model", "draft": str(target)}
    chain, key = certificate(folder)
    for tls in (True, False):
        secured = ("--tls-cert", str(chain), "--tls-key", str(key)) if tls else ()
        with verifier(folder / "verifier.yaml", target, {}, *secured) as address:
            for name, drafter in drafts.items():
                for in_flight in IN_FLIGHT:
                    # A link of our own: it tells segments, too.
                    link = ServerProcess(["link", "--listen", "127.0.0.1:0", "--to", address, f"--preset={PRESET}"])
                    own = {"mode": "split", "length": f"fixed:{DRAFT_LENGTH}", "in_flight": in_flight, **drafter}
                    more = {"verifier_ca": str(chain)} if tls else {}
                    try:
                        with edge(target, link.address, own, **more) as llm:
                            counted = _counted(llm, link, truth.questions)
                    finally:
                        link.close()
                    yield {"drafts": name, "tls": tls, "in_flight": in_flight, **counted}


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed one for this machine, and its key. Raises ``UserError`` without openssl."""
    chain, key = folder / "certificate.pem", folder / "key.pem"
    kind = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    try:
        command = ["openssl", *kind, *names, "-keyout", str(key), "-out", str(chain)]
        subprocess.run(command, check=True, capture_output=True)
    except FileNotFoundError as error:
        raise UserError("TLS needs a certificate, which openssl makes: install it") from error
    return chain, key


def _counted(llm: Any, link: ServerProcess, asked: list[str]) -> Row:
    decode(llm, asked[0], TOKENS)
    before = link.ask()
    answers = [decode(llm, question, TOKENS) for question in asked[1:]]
    after = link.ask()
    steps = [step for answer in answers for step in answer.trace.steps]
    accepted = sum(step.accepted for step in steps)
    counts = {
        f"{what}_{way}": after[way][what] - before[way][what]
        for way in ("up", "down")
        for what in ("bytes", "segments")
    }
    return {
        **counts,
        "emitted": sum(len(answer.token_ids) for answer in answers),
        "rounds": len(steps),
        "acceptance": accepted / max(1, accepted + sum(step.accepted < step.drafted for step in steps)),
    }


def summary(_: Sequence[Row]) -> str:
    return "flying: drafts on their way at a time"


def cells(row: Row) -> list[str]:
    data, segments = row["bytes_up"] + row["bytes_down"], row["segments_up"] + row["segments_down"]
    emitted, rounds = row["emitted"], row["rounds"]
    figures = (row["bytes_up"] / rounds, row["bytes_down"] / rounds)
    figures += tuple((data + headers * HEADERS * segments) / emitted for headers in range(3))
    shown = [f"{row['acceptance']:.3f}", f"{emitted / rounds:.2f}", *(f"{figure:.1f}" for figure in figures)]
    return [row["drafts"], "yes" if row["tls"] else "no", str(row["in_flight"]), *shown]
