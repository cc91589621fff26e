"""The ``specdec`` command. Each subcommand is a module in ``commands``, imported on use."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from ianvs_specdec import __version__
from ianvs_specdec.common.errors import UserError, optional_import

COMMANDS = {
    "data": "convert benchmark files to the format of Ianvs, or generate the embedded benchmark",
    "datastore": "build a datastore for the methods rest and suffix",
    "decode": "decode prompts with one method and write outputs and step traces",
    "example": "copy the example, with its models and data, into a folder",
    "export": "convert a model: to a GGUF file for llama.cpp, or a GGUF file to a Hugging Face folder",
    "journal": "write the answers of a job as JSON lines",
    "link": "relay connections over an emulated network path: delay, bandwidth, loss, outages",
    "load": "load-test speculation policies or a running server at several request rates",
    "profile": "measure the cost of a model's steps and drafts on this machine",
    "serve": "serve a model with any back end through an OpenAI-compatible API",
    "report": "write an HTML report of a workspace of Ianvs, and its data as JSON and CSV",
    "route": "label queries, train a router on them, evaluate routers on recorded outcomes",
    "simulate": "simulate a server under the load of many users, from a cost table",
    "verifier": "serve a model that verifies the drafts of edges, with continuous batching",
    "train": "train the embedded models, or a draft head for any model",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand. Exit codes: 0 done, 1 failed, 2 wrong usage or input, 130 Ctrl-C, 143 SIGTERM."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="specdec", description="Cloud-edge LLM inference without Ianvs.")
    parser.add_argument("--version", action="version", version=f"specdec {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = next((argument for argument in arguments[:1] if argument in COMMANDS), "")
    debug = "--debug" in arguments
    # Allowed anywhere, also after a nested subcommand.
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        with optional_import():
            for name, summary in COMMANDS.items():
                sub = subparsers.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
                sub.add_argument("--debug", action="store_true", help="show the full traceback of an error")
                if name == command:
                    module = importlib.import_module(f"ianvs_specdec.commands.{name}")
                    module.add_arguments(sub)
                    sub.set_defaults(run=module.run)
            options = parser.parse_args(arguments)
            with _sigterm_interrupts():
                return int(options.run(options) or 0)
    except UserError as error:
        if debug:
            raise
        print(f"specdec {command}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if debug:
            raise
        where = f": {error.filename}" if error.filename else ""
        print(f"specdec {command}: {error.strerror or error}{where}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interruption:
        print(f"specdec {command}: interrupted", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(interruption, _Terminated) else signal.SIGINT)


class _Terminated(KeyboardInterrupt):
    """SIGTERM, handled like Ctrl-C."""


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    # Python flushes standard output at exit and would turn a closed pipe (`specdec ... | head`) into a traceback.
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)
