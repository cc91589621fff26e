"""Part ``tightwad``: the package tightwad beside split decoding, over the same link, with the same models.

tightwad is a proxy on the edge between two servers of llama.cpp. It asks the near one for a draft and the far one for
as many tokens, and keeps those that agree (https://pypi.org/project/tightwad, 0.5). Each engine's own plain answer over
the link stands beside it, so that what the way to decode brings can be told from what the engine does.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.command import SETS
from bench.prompts import read_prompts
from bench.split.scene import MODELS, ONE_THREAD, PATIENCE, Client, floats, free_port, noised, process, relay, verifier
from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Access
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf.gguf import export_gguf

PLAIN, TIGHTWAD, STREAMED, SPLIT, AUTO = "llama.cpp, plain", "tightwad", "ours, plain", "ours, split", "ours, auto"
ROOM = 512
"""Tokens of a prompt at most."""
POLL = 0.05
"""Seconds between two looks at whether a server is there."""


def add_arguments(add: Any) -> None:
    add("--tightwad", default="tightwad", metavar="CMD", help="the command of the package (tightwad)")
    add("--llama-server", default="llama-server", metavar="CMD", help="of llama.cpp (llama-server)")
    add("--target", type=Path, default=MODELS / "cloud", metavar="DIR", help="(the embedded cloud)")
    add("--draft", type=Path, metavar="DIR", help="(the target with noise in its weights)")
    add("--length", type=int, default=5, metavar="K", help="tokens of a draft, but where they are chosen (5)")
    add("--trips", type=floats, default=[2.0, 20.0, 80.0], metavar="A,B", help="round trips in ms (2,20,80)")
    add("--limit", type=int, default=4, metavar="N", help="prompts of each embedded set, evenly spread (4)")
    add("--tokens", type=int, default=64, metavar="N", help="of an answer at most (64)")


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    from transformers import AutoTokenizer

    draft = options.draft or noised(options.target, folder / "draft")
    tokenizer = AutoTokenizer.from_pretrained(options.target, trust_remote_code=False)
    prompts = [ids for file in SETS for ids in read_prompts(file, tokenizer, options.limit, ROOM)]
    with ExitStack() as stack:
        far, near = (
            stack.enter_context(_llama(options.llama_server, model, folder / f"{name}.gguf"))
            for name, model in (("far", options.target), ("near", draft))
        )
        own = stack.enter_context(verifier(folder, options.target, {}))
        rows = [_met(options, trip, (far, near, own), draft, prompts, tokenizer, folder) for trip in options.trips]
    return {"rows": rows}


def _met(
    options: argparse.Namespace,
    trip: float,
    servers: tuple[str, str, str],
    draft: Path,
    prompts: Sequence[Sequence[int]],
    tokenizer: Any,
    folder: Path,
) -> dict[str, Any]:
    far, near, own = servers
    path = {"delay": f"{trip / 2}ms"}
    with ExitStack() as stack:
        theirs = stack.enter_context(relay(far, path)).address
        proxy = stack.enter_context(_tightwad(options, theirs, near, folder))
        ours = Access(stack.enter_context(relay(own, path)).address)
        drafter = drafters.create("draft_model", {"draft": str(draft)})
        streamed = stack.enter_context(Client(ours, drafter, mode="stream"))
        split = stack.enter_context(Client(ours, drafter.fork(), options.length, "split"))
        auto = stack.enter_context(Client(ours, drafter.fork()))

        def asked(address: str) -> Callable[[Sequence[int]], list[int]]:
            return lambda ids: _completed(address, tokenizer, ids, options.tokens)

        arms = {
            PLAIN: asked(theirs),
            TIGHTWAD: asked(proxy),
            STREAMED: lambda ids: streamed.decode(ids, options.tokens).token_ids,
            SPLIT: lambda ids: split.decode(ids, options.tokens).token_ids,
            AUTO: lambda ids: auto.decode(ids, options.tokens).token_ids,
        }
        row = _interleaved(arms, prompts)
    print(f"{trip:g} ms: " + "  ".join(f"{name} {rate:.1f}/s" for name, rate in row["rates"].items()), flush=True)
    return {"trip": trip, **row}


def _interleaved(
    arms: dict[str, Callable[[Sequence[int]], list[int]]], prompts: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """Tokens per second of each, the first prompt's answer left out, and the answers that are the plain ones."""
    tokens, seconds = dict.fromkeys(arms, 0), dict.fromkeys(arms, 0.0)
    same = dict.fromkeys((TIGHTWAD, SPLIT, AUTO), 0)
    for number, ids in enumerate([prompts[0], *prompts]):
        answers = {}
        for name, answer in arms.items():
            begin = time.perf_counter()
            answers[name] = answer(ids)
            if number:
                seconds[name] += time.perf_counter() - begin
                tokens[name] += len(answers[name])
        if number:
            same[TIGHTWAD] += answers[TIGHTWAD] == answers[PLAIN]
            for name in (SPLIT, AUTO):
                same[name] += answers[name] == answers[STREAMED]
    return {
        "rates": {name: tokens[name] / seconds[name] for name in arms},
        "same": {name: count / len(prompts) for name, count in same.items()},
    }


def _completed(address: str, tokenizer: Any, ids: Sequence[int], tokens: int) -> list[int]:
    """The answer's text as tokens: the protocol has no others."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    body = {"prompt": tokenizer.decode(ids), "max_tokens": tokens, "temperature": 0.0, "stream": False}
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse().read()
        text = json.loads(reply)["choices"][0]["text"]
    except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
        raise UserError(f"{address} gave no completion: {error!r}") from error
    finally:
        connection.close()
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


@contextmanager
def _llama(server: str, model: Path, file: Path) -> Iterator[str]:
    """The address of a server of llama.cpp with the ``model``."""
    export_gguf(model, file, "f32")
    port = free_port()
    command = [server, "--model", str(file), "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
    with _serving([*command, "--parallel", "1", "--ctx-size", "2048", "--log-disable"], port, "/health"):
        yield f"127.0.0.1:{port}"


@contextmanager
def _tightwad(options: argparse.Namespace, far: str, near: str, folder: Path) -> Iterator[str]:
    port, file = free_port(), folder / "cluster.yaml"
    ends = {
        name: {"url": f"http://{address}", "model_name": name, "backend": "llamacpp"}
        for name, address in (("target", far), ("draft", near))
    }
    proxy = {"host": "127.0.0.1", "port": port, "max_draft_tokens": options.length, **ends}
    # YAML takes JSON. It also wants a cluster, which the proxy does not use.
    file.write_text(json.dumps({"proxy": proxy, "coordinator": {"host": "127.0.0.1", "port": 1}, "workers": []}))
    command = [options.tightwad, "--config", str(file), "proxy", "start"]
    with _serving(command, port, "/v1/models", HOME=str(folder)):
        yield f"127.0.0.1:{port}"


@contextmanager
def _serving(command: Sequence[str], port: int, path: str, **environment: str) -> Iterator[None]:
    """A server, from when it answers ``path``. Raises ``UserError`` where it does not."""
    with ExitStack() as stack:
        quiet = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
        try:
            running = stack.enter_context(
                process(command, stdout=quiet, stderr=quiet, env={**ONE_THREAD, **environment})
            )
        except OSError as error:
            raise UserError(f"there is no {command[0]} here: install it, or give its path (see --help)") from error
        deadline = time.monotonic() + PATIENCE
        while not _answers(port, path):
            if running.poll() is not None or time.monotonic() > deadline:
                raise UserError(f"{' '.join(command)} does not answer {path}: start it by hand to see why")
            time.sleep(POLL)
        yield


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def table(report: dict[str, Any]) -> str:
    names = (PLAIN, TIGHTWAD, STREAMED, SPLIT, AUTO)
    lines = ["round trip, ms  " + "".join(f"{name:>18}" for name in names) + "   split, auto over tightwad"]
    for row in report["rows"]:
        rates = row["rates"]
        cells = "".join(f"{rates[name]:>18.1f}" for name in names)
        over = "  ".join(f"{rates[name] / rates[TIGHTWAD]:.2f}x" for name in (SPLIT, AUTO))
        lines.append(f"{row['trip']:<16g}{cells}   {over}")
    same = {name: min(row["same"][name] for row in report["rows"]) for name in (TIGHTWAD, SPLIT, AUTO)}
    told = ", ".join(f"{name} {share:.0%}" for name, share in same.items())
    lines.append(f"tokens per second of whole answers; answers that are the engine's plain ones, at least: {told}")
    return "\n".join(lines)
