"""Arguments of the commands that run a server: --exit-with-parent, TLS."""

from __future__ import annotations

import argparse
import os
import signal
import ssl
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ianvs_specdec.common.errors import UserError


def add_parent(parser: argparse.ArgumentParser, effect: str = "") -> None:
    """``effect``: what a line on standard input does, for the help."""
    more = f"; each line before it {effect}" if effect else ""
    parser.add_argument(
        "--exit-with-parent", action="store_true", help=f"exit when standard input, a pipe, closes{more}"
    )


def watch_parent(on_line: Callable[[], object] = lambda: None) -> None:
    """Send SIGTERM to this process when standard input ends, even while a model is loading. ``on_line`` is called by a
    thread for each line before that. Raises UserError unless standard input is a pipe, socket or terminal."""
    source = sys.stdin.fileno()
    mode = os.fstat(source).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(source)):
        raise UserError("--exit-with-parent: standard input must be a pipe of the parent process")

    def read() -> None:
        while data := os.read(source, 4096):
            for _ in range(data.count(b"\n")):
                on_line()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=read, name="parent", daemon=True).start()


def add_tls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, PEM, without a password")


def check_tls(options: argparse.Namespace) -> None:
    """Raise UserError unless certificate and key are both valid or both absent."""
    certificate, key = options.tls_cert, options.tls_key
    if (certificate is None) != (key is None):
        raise UserError("--tls-cert and --tls-key belong together: give both")
    if certificate is None:
        return
    try:
        for file in (certificate, key):
            file.read_bytes()
        # The empty password keeps OpenSSL from prompting for one.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        files, reason = f"--tls-cert {certificate}, --tls-key {key}", f" ({error.reason})" if error.reason else ""
        raise UserError(f"{files}: not a certificate and its key, in PEM without a password{reason}") from error
    except OSError as error:
        raise UserError(f"--tls-cert, --tls-key: {error.filename}: {error.strerror}") from error
