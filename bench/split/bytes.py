"""Part ``bytes``: bytes per emitted token at the socket, TLS and HTTP/2 in them, as the link's record counts them.

A connection is made and used once before it is counted; what is counted has the opening of each answer in it, with its
prompt. With the headers of IPv4 and TCP, 52 bytes a segment, of the segments with data that the link saw; and with a
bare acknowledgement for each of them besides, which is the most that there can be.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.split.paced import Paced
from bench.split.scene import (
    Certificate,
    Client,
    decoded,
    endless_target,
    floats,
    random_prompts,
    relay,
    verifier,
)
from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Access
from ianvs_specdec.net.link.line import HEADERS

BAR = 45.0
"""Bytes per token at length 5 and an acceptance of 0.8 or more."""


def add_arguments(add: Any) -> None:
    add("--acceptances", type=floats, default=[0.8, 0.9], metavar="A,A", help="of drafts with a set quality (0.8,0.9)")
    add("--length", type=int, default=5, metavar="K", help="of a draft (5)")
    add("--in-flight", type=floats, default=[1, 4], metavar="N,N", help="drafts on their way (1,4)")
    add("--preset", default="fibre", metavar="NAME", help="the path (fibre)")
    add("--tokens", type=int, default=400, metavar="N", help="of an answer (400)")
    add("--prompts", type=int, default=2, metavar="N")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    certificate = Certificate.made(folder)
    rows = []
    target, prompts, truth = endless_target(folder / "target"), random_prompts(options.prompts + 1), folder / "truth"
    decoded(target, prompts, options.tokens + 1, truth)
    drafts: list[tuple[str, Any]] = [
        (f"right with probability {acceptance:g}", Paced(str(truth), acceptance, seconds=1e-3))
        for acceptance in options.acceptances
    ]
    drafts.append(("the target itself", drafters.create("draft_model", {"draft": str(target)})))
    for tls in (True, False):
        with verifier(folder, target, {}, certificate if tls else None) as address, ExitStack() as stack:
            for name, drafter in drafts:
                for in_flight in map(int, options.in_flight):
                    link = stack.enter_context(relay(address, {"preset": options.preset}))
                    access = Access(link.address, authority=certificate.chain if tls else None)
                    client = Client(access, drafter.fork(), options.length, "split", in_flight)
                    told = {"drafts": name, "tls": tls, "in_flight": in_flight}
                    rows.append(told | _counted(stack.enter_context(client), link, prompts, options.tokens))
    return {"rows": rows}


def _counted(client: Client, link: Any, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
    client.decode(prompts[0], tokens)
    before = link.summary()
    answers = [client.decode(prompt, tokens) for prompt in prompts[1:]]
    after = link.summary()
    counts = {
        f"{what}_{way}": after[way][what] - before[way][what]
        for way in ("up", "down")
        for what in ("bytes", "segments")
    }
    steps = [step for answer in answers for step in answer.trace.steps]
    accepted = sum(step.accepted for step in steps)
    return {
        **counts,
        "messages_up": sum(answer.trace.bytes_up for answer in answers),
        "messages_down": sum(answer.trace.bytes_down for answer in answers),
        "emitted": sum(len(answer.token_ids) for answer in answers),
        "rounds": len(steps),
        "acceptance": accepted / max(1, accepted + sum(step.accepted < step.drafted for step in steps)),
    }


def table(report: dict[str, Any]) -> str:
    lines = [
        f"{'drafts':<28}{'TLS':>4}{'flying':>7}{'accept.':>8}{'tok/round':>10}{'up/round':>9}{'down':>6}"
        f"{'B/token':>9}{'messages':>9}{'+headers':>9}{'+acks':>7}"
    ]
    for row in report["rows"]:
        data, segments = row["bytes_up"] + row["bytes_down"], row["segments_up"] + row["segments_down"]
        emitted, rounds = row["emitted"], row["rounds"]
        lines.append(
            f"{row['drafts']:<28}{'yes' if row['tls'] else 'no':>4}{row['in_flight']:>7}{row['acceptance']:>8.3f}"
            f"{emitted / rounds:>10.2f}{row['bytes_up'] / rounds:>9.1f}{row['bytes_down'] / rounds:>6.1f}"
            f"{data / emitted:>9.1f}{(row['messages_up'] + row['messages_down']) / emitted:>9.1f}"
            f"{(data + HEADERS * segments) / emitted:>9.1f}{(data + 2 * HEADERS * segments) / emitted:>7.1f}"
        )
    return "\n".join(lines)
