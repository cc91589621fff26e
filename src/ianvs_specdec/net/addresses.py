"""Addresses as text, and sockets that are bound to them."""

from __future__ import annotations

import ipaddress
import socket

from ianvs_specdec.common.errors import UserError

Address = tuple[str, int]


def format_address(host: str, port: int) -> str:
    """The text of an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, key: str, *, any_port: bool = False, default: str = "127.0.0.1") -> Address:
    """Host and port of ``HOST:PORT``. ``any_port``: 0 is one, too. ``default``: the host where there is none, "" to ask
    for one. Raises UserError with the ``key``, an option."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or default
    try:
        # As a look-up would.
        host.encode("idna")
        if ":" in host:
            ipaddress.IPv6Address(host)
        right = bool(colon and host) and port.isascii() and port.isdigit()
        right = right and (0 if any_port else 1) <= int(port) <= 65535
    except ValueError:
        right = False
    if not right:
        raise UserError(f"--{key} must be written as 127.0.0.1:8000 or [::1]:8000, not {text!r:.80}", key=key)
    return host, int(port)


def bind(host: str, port: int, *, listening: bool = False) -> socket.socket:
    """A bound socket. Raises UserError where the address cannot be had."""
    bound = None
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        # The port of a server that has just ended can be had at once.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place)
        if listening:
            bound.listen(socket.SOMAXCONN)
    except OSError as error:
        if bound is not None:
            bound.close()
        told = f"cannot listen on {format_address(host, port)}: {error.strerror or error}"
        raise UserError(f"{told}; name another address, with port 0 for any that is free") from error
    return bound
