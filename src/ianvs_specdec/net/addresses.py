"""Addresses as text, and bound sockets."""

from __future__ import annotations

import ipaddress
import socket

from ianvs_specdec.common.errors import UserError

Address = tuple[str, int]


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, key: str, *, any_port: bool = False, default: str = "127.0.0.1") -> Address:
    """Host and port of ``HOST:PORT``. ``any_port``: port 0 is allowed. ``default``: the host if missing; "" = required.

    Raises UserError with ``key``, the option's name."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or default
    try:
        # As in name resolution.
        host.encode("idna")
        if ":" in host:
            ipaddress.IPv6Address(host)
        valid = bool(colon and host) and port.isascii() and port.isdigit()
        valid = valid and (0 if any_port else 1) <= int(port) <= 65535
    except ValueError:
        valid = False
    if not valid:
        raise UserError(f"--{key} must be written as 127.0.0.1:8000 or [::1]:8000, not {text!r:.80}", key=key)
    return host, int(port)


def bind(host: str, port: int, *, listening: bool = False) -> socket.socket:
    """A bound socket. Raises UserError if the address is not available."""
    bound = None
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        # Allows to reuse the port of a server that has just ended.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        if listening:
            bound.listen(socket.SOMAXCONN)
    except OSError as error:
        if bound is not None:
            bound.close()
        reason = f"cannot listen on {format_address(host, port)}: {error.strerror or error}"
        raise UserError(f"{reason}; choose another address; port 0 selects a free port") from error
    return bound
