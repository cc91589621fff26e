"""The arguments by which a server gets its certificate."""

from __future__ import annotations

import argparse
import ssl
from pathlib import Path

from ianvs_specdec.common.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, PEM, without a password")


def check(options: argparse.Namespace) -> None:
    """Raise UserError unless there are a certificate and its key, or neither."""
    certificate, key = options.tls_cert, options.tls_key
    if (certificate is None) != (key is None):
        raise UserError("--tls-cert and --tls-key belong together: give both")
    if certificate is None:
        return
    try:
        for file in (certificate, key):
            file.read_bytes()
        # Without a password, OpenSSL would ask for that of an encrypted key at the terminal.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key, password="")
    except ssl.SSLError as error:
        files, reason = f"--tls-cert {certificate}, --tls-key {key}", f" ({error.reason})" if error.reason else ""
        raise UserError(f"{files}: not a certificate and its key, in PEM without a password{reason}") from error
    except OSError as error:
        raise UserError(f"--tls-cert, --tls-key: {error.filename}: {error.strerror}") from error
