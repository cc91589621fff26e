"""``specdec verifier``: serve a target model that verifies the drafts of many edges, with continuous batching."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ianvs_specdec import lengths
from ianvs_specdec.backends import backend
from ianvs_specdec.commands.arguments import check_ranges
from ianvs_specdec.commands.hyperparameters import read_hyperparameters
from ianvs_specdec.commands.server_arguments import add_parent, add_tls, check_tls, watch_parent
from ianvs_specdec.common import heap
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net import LOOPBACK
from ianvs_specdec.plugin.settings import ModelSettings

if TYPE_CHECKING:
    from ianvs_specdec.backends.specdec import EngineLLM
    from ianvs_specdec.serving.verifier.session import Metrics

SHORTEST_TOKEN = 16
"""Characters: a shorter token can be guessed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--settings", type=Path, metavar="FILE", help="YAML file with the model's hyperparameters")
    add("--model", metavar="DIR", help="folder in Hugging Face format, GGUF file")
    add("--set", action="append", default=[], metavar="K=V", help="one hyperparameter; repeatable")
    add("--length", metavar="RULE", help="how many tokens of a draft to verify (default: as in the settings, or all)")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    add("--port", type=int, default=8500, metavar="P", help="default 8500; 0 = any that is free")
    add("--token-file", type=Path, metavar="FILE", help="tokens of clients, one a line")
    add_tls(parser)
    add("--sessions", type=int, default=256, metavar="N", help="concurrent sessions (default 256)")
    add("--most-draft", type=int, default=64, metavar="N", help="tokens of one draft (default 64)")
    add("--idle", type=float, default=60.0, metavar="S", help="seconds that a client may be silent (default 60)")
    add("--metrics-port", type=int, metavar="P", help="offer /metrics on this machine's port P")
    add("--grace", type=float, default=30.0, metavar="S", help="seconds to finish requests at shutdown (30)")
    add_parent(parser)


def run(options: argparse.Namespace) -> int:
    # Before the model is loaded, to report invalid arguments early.
    _check(options)
    tokens = _tokens(options.token_file)
    if options.host not in LOOPBACK and (tokens is None or options.tls_cert is None):
        raise UserError(
            f"--host {options.host}: others can reach it, so --tls-cert with --tls-key and --token-file are needed"
        )
    if options.length is not None:
        lengths.create(options.length)
    if options.exit_with_parent:
        watch_parent()
    asyncio.run(_serve(options, _model(options), tokens))
    return 0


def _check(options: argparse.Namespace) -> None:
    check_ranges(
        options,
        ("port", 0 <= options.port <= 65535, "from 0 to 65535"),
        ("metrics_port", 0 <= (options.metrics_port or 0) <= 65535, "from 0 to 65535"),
        ("sessions", 1 <= options.sessions <= 100_000, "from 1 to 100000"),
        ("most_draft", 1 <= options.most_draft <= 4096, "from 1 to 4096"),
        ("idle", 0 < options.idle <= 1e6, "more than 0 (seconds)"),
        ("grace", 0 <= options.grace <= 1e6, "0 or more (seconds)"),
    )
    check_tls(options)


def _tokens(file: Path | None) -> list[str] | None:
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--token-file {file}: {getattr(error, 'strerror', None) or error}") from error
    tokens = [line.strip() for line in lines if line.strip()]
    if not tokens or any(len(token) < SHORTEST_TOKEN for token in tokens):
        raise UserError(f"--token-file {file}: one token a line, each of at least {SHORTEST_TOKEN} characters")
    return tokens


def _model(options: argparse.Namespace) -> EngineLLM:
    named = {"--model": options.model}
    given = read_hyperparameters(options.settings, options.set, "--set", named)
    if not given.values.get("model"):
        raise UserError("no model: give --model, or --settings with a file that has the key model")
    settings = given.check(ModelSettings.parse)
    from ianvs_specdec.backends.specdec import EngineLLM

    if not issubclass(backend(settings.backend), EngineLLM):
        raise UserError(
            f"the back end {settings.backend} cannot verify drafts: only our engine can. Leave the key backend out, or "
            "name a method of our engine, which then drafts in mode stream; specdec serve streams answers of other "
            "back ends"
        )
    llm = settings.llm(settings.backend)
    assert isinstance(llm, EngineLLM)
    if llm.drafting.get("acceptance", "coupled") != "coupled":
        raise UserError("acceptance must be coupled: drafts arrive without probabilities")
    return llm


async def _serve(options: argparse.Namespace, llm: EngineLLM, tokens: list[str] | None) -> None:
    from ianvs_specdec.serving.verifier.server import Server, tls_credentials
    from ianvs_specdec.serving.verifier.service import Limits, Service, load_model, token_digest
    from ianvs_specdec.serving.verifier.session import Metrics

    served = load_model(llm, options.length, options.sessions)
    heap.keep()
    try:
        metrics = Metrics(served.name, llm.occupancy)
        bounds = Limits(options.sessions, options.most_draft, options.idle)
        known = None if tokens is None else [token_digest(token) for token in tokens]
        service = Service(served, bounds, known, metrics)
        metrics.watch(lambda: len(service.sessions))
        credentials = tls_credentials(options.tls_cert, options.tls_key) if options.tls_cert else None
        server = Server(service, options.sessions, served.target.window, credentials)
        port = server.bind(options.host, options.port)
        server.stop_on(signal.SIGTERM, signal.SIGINT)
        with _metrics_server(metrics, options.metrics_port):
            await server.run(lambda: print(f"listening on {options.host}:{port}", flush=True), options.grace)
    finally:
        llm.close()


@contextmanager
def _metrics_server(metrics: Metrics, port: int | None) -> Iterator[None]:
    """Serve ``metrics`` at ``/metrics`` on this machine's ``port``."""
    if port is None:
        yield
        return
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(port, addr="127.0.0.1", registry=metrics.registry)
    except OSError as error:
        raise UserError(f"--metrics-port {port}: {error.strerror or error}; 0 = any that is free") from error
    print(f"metrics on http://127.0.0.1:{server.server_port}/metrics", flush=True)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
