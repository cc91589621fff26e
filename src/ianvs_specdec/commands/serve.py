"""``specdec serve``: an OpenAI-compatible server of any back end, or of a test case's router and models."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ianvs_specdec.backends import BACKENDS, backend
from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.local import TokenizingLLM
from ianvs_specdec.backends.prompts import chat_template
from ianvs_specdec.commands.arguments import check_ranges, option
from ianvs_specdec.commands.hyperparameters import add_template, read_hyperparameters
from ianvs_specdec.commands.server_arguments import add_parent, add_tls, check_tls, watch_parent
from ianvs_specdec.common import heap
from ianvs_specdec.common.errors import UserError, install_command
from ianvs_specdec.models.templates import CLOCK, template_variables
from ianvs_specdec.net import LOOPBACK
from ianvs_specdec.net.addresses import bind
from ianvs_specdec.plugin.settings import ModelSettings

if TYPE_CHECKING:
    from ianvs_specdec.gateway.case import Case

OF_ONE_MODEL = (
    *("model", "backend", "settings", "length", "truncate_prompts", "chat_template_kwargs", "template_time"),
    *("emulate", "name"),
)
"""Options that exclude ``-f``: a job has its own settings for them."""
CONCURRENCY = 64
"""Default number of concurrent requests, if the back end supports concurrency."""
MAX_CONCURRENCY = 1024
"""Maximum number of concurrent requests, each with a thread."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("-f", dest="job", metavar="JOB", help="a job's YAML file: serve one of its test cases")
    add("--algorithm", metavar="NAME", help="with -f: the algorithm whose test case is served")
    fallback = "with -f: the edge answers if the cloud fails or does not start within S seconds"
    add("--fallback", type=float, metavar="S", help=fallback)
    add("--model", metavar="DIR", help="folder in Hugging Face format, GGUF file, or a name on the hub")
    add("--backend", metavar="NAME", help=f"one of: {', '.join(BACKENDS)} (default autoregressive)")
    add("--settings", type=Path, metavar="FILE", help="YAML file with a model's hyperparameters")
    add("--set", action="append", default=[], metavar="K=V", help="one hyperparameter; repeatable")
    add("--length", metavar="RULE", help="how far to speculate, such as fixed:4")
    truncate = "truncate prompts that exceed the model's window instead of rejecting them"
    add("--truncate-prompts", action="store_const", const=True, help=truncate)
    add_template(parser)
    add("--emulate", metavar="FILE", help="cost table: emulate the speed of that machine")
    add("--name", metavar="NAME", help="the model's name for clients (default: the folder's)")
    add("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    add("--port", type=int, default=8000, metavar="N", help="default 8000; 0 = any that is free")
    add("--api-key-env", metavar="NAME", help="environment variable with the key that clients must send")
    add_tls(parser)
    concurrency = f"concurrent requests (default {CONCURRENCY}; 1 for back ends without concurrency)"
    add("--concurrency", type=int, metavar="N", help=concurrency)
    add("--queue", type=int, default=256, metavar="N", help="waiting requests (default 256)")
    add("--connections", type=int, default=1000, metavar="N", help="concurrent connections (default 1000)")
    add("--deadline", type=float, default=300.0, metavar="S", help="seconds for one answer (default 300)")
    add("--max-body", type=int, default=4 << 20, metavar="BYTES", help="maximum size of a request (default 4 MiB)")
    add("--grace", type=float, default=30.0, metavar="S", help="seconds to finish requests at shutdown (30)")
    add("--ui", action="store_true", help="a page at /ui with requests and answers, for this machine")
    add_parent(parser)


def run(options: argparse.Namespace) -> int:
    # Before the model is loaded, to report invalid arguments early.
    _check(options)
    if options.exit_with_parent:
        watch_parent()
    key = _key(options.api_key_env)
    try:
        from ianvs_specdec.serving.app import Service, create_app
        from ianvs_specdec.serving.engine import EngineClient, RequestQueue
        from ianvs_specdec.serving.metrics import Metrics
        from ianvs_specdec.serving.protocol import served_name
        from ianvs_specdec.serving.server import max_connections, serve, url_of
        from ianvs_specdec.serving.tokens import token_routes
        from ianvs_specdec.serving.ui import Feed

        case = None if options.job is None else _test_case(options)
    except ImportError as error:
        message = f"the server needs uvicorn, starlette and prometheus_client ({error})"
        raise UserError(f"{message}: {install_command('serve')}") from error
    loaded = [(side.llm, side.settings) for side in case.sides.values()] if case else [_model(options)]
    concurrency = max([_concurrency(options.concurrency, llm) for llm, _ in loaded])
    bound = bind(options.host, options.port)
    if options.host not in LOOPBACK and not key:
        print(
            "specdec serve: every client that reaches this port can use it; --api-key-env requires a key",
            file=sys.stderr,
        )
    most = max_connections(options.connections)
    if most < options.connections:
        reason = f"at most {most} concurrent connections, limited by the open files of this process (ulimit -n)"
        print(f"specdec serve: {reason}", file=sys.stderr)
    for llm, settings in loaded:
        llm.load()
        if CLOCK in template_variables(chat_template(llm)) and not settings.sampling.template_time:
            print("specdec serve: the chat template uses today's date; --template-time sets it", file=sys.stderr)
    heap.keep()
    llm, settings = loaded[0]
    this_machine = options.host in LOOPBACK and not key
    limits = settings.sampling, key, options.deadline, options.max_body, this_machine
    if case is None:
        name = options.name or served_name(settings.general.model)
        metrics = Metrics(name, settings.backend)
        engine: EngineClient = RequestQueue(llm, options.queue, concurrency, metrics)
        window = llm.chat.window if isinstance(llm, TokenizingLLM) else None
        service = Service((name,), *limits, window)
        app = create_app(service, engine, metrics, token_routes(llm, service))
    else:
        from ianvs_specdec.gateway.app import create_gateway

        app, engine = create_gateway(case, limits, options.queue, concurrency, options.fallback)
    if options.ui:
        scheme = "https" if options.tls_cert else "http"
        app.routes.extend(Feed(engine).routes())
        print(f"specdec serve: requests and answers are shown at {url_of(bound, scheme)}/ui", file=sys.stderr)
    serve(app, engine, bound, options.grace, most, options.tls_cert, options.tls_key)
    return 0


def _model(options: argparse.Namespace) -> tuple[LLM, ModelSettings]:
    for name in ("algorithm", "fallback"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name} is for the test case of a job: name its file with -f")
    settings = _settings(options)
    return settings.llm(settings.backend), settings


def _test_case(options: argparse.Namespace) -> Case:
    from ianvs_specdec.gateway.case import read_case

    if given := [name for name in OF_ONE_MODEL if getattr(options, name)]:
        raise UserError(f"{option(given[0])} does not go with -f: the job's files have it for each model")
    return read_case(options.job, options.algorithm, read_hyperparameters(None, options.set, "--set").values)


def _check(options: argparse.Namespace) -> None:
    check_ranges(
        options,
        ("port", 0 <= options.port <= 65535, "from 0 to 65535"),
        ("concurrency", options.concurrency in (None, *range(1, MAX_CONCURRENCY + 1)), f"from 1 to {MAX_CONCURRENCY}"),
        ("queue", options.queue >= 0, "0 or more"),
        ("connections", 1 <= options.connections <= 1_000_000, "from 1 to 1000000"),
        ("deadline", 0 < options.deadline <= 1e6, "more than 0 (seconds)"),
        ("max_body", options.max_body >= 1, "at least 1 (byte)"),
        ("grace", 0 <= options.grace <= 1e6, "0 or more (seconds)"),
        ("fallback", options.fallback is None or 0 < options.fallback <= 1e6, "more than 0 (seconds)"),
    )
    check_tls(options)
    if options.ui and (options.host not in LOOPBACK or options.api_key_env):
        raise UserError(
            "--ui shows all answers to every user of this machine: it needs --host 127.0.0.1 (ssh -L makes the page "
            "reachable from elsewhere) and no --api-key-env"
        )


def _concurrency(wanted: int | None, llm: LLM) -> int:
    if not llm.concurrent and (wanted or 1) > 1:
        raise UserError(f"--concurrency {wanted}: the back end {llm.backend} takes one request at a time")
    return wanted or (CONCURRENCY if llm.concurrent else 1)


def _key(variable: str | None) -> str:
    check_no_secrets({"api_key_env": variable})
    key = os.environ.get(variable, "").strip() if variable else ""
    if variable and not key:
        raise UserError(f"the environment variable {variable} (--api-key-env) holds no key")
    return key


def _settings(options: argparse.Namespace) -> ModelSettings:
    """The hyperparameters of the file, overridden by the command line."""
    named = {
        "--model": options.model,
        "--backend": options.backend,
        "--length": options.length,
        "--truncate-prompts": options.truncate_prompts,
        "--emulate": options.emulate,
        "--chat-template-kwargs": options.chat_template_kwargs or None,
        "--template-time": options.template_time or None,
    }
    given = read_hyperparameters(options.settings, options.set, "--set", named)
    if not given.values.get("model"):
        raise UserError("no model: give --model, --settings with a file that has the key model, or -f with a job")
    settings = given.check(ModelSettings.parse)
    if options.length is not None and "length" not in backend(settings.backend).Options.model_fields:
        raise UserError(
            f"--length: the back end {settings.backend} does not draft with lengths; --backend names another"
        )
    return settings
