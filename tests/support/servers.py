"""Servers for tests of clients: one that sends scripted bytes, and a relay that counts bytes."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

Serve = Callable[[socket.socket], None]


class Listener:
    """Accepts connections on the loopback interface and serves each in a thread."""

    def __init__(self, serve: Serve) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.accepted = 0
        self._serve = serve
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._run, args=(connection,), daemon=True).start()

    def _run(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._serve(connection)
            except OSError:
                # The client has disconnected.
                return

    def close(self) -> None:
        # Closing alone does not end an accept() in another thread.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Relay(Listener):
    """A relay to another port. ``up``, ``down``: bytes at its client's sockets."""

    def __init__(self, port: int) -> None:
        self.up = self.down = 0
        self._target = port
        super().__init__(self._relay)

    def _relay(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self._target)) as server:
            back = threading.Thread(target=self._back, args=(server, client), daemon=True)
            back.start()
            while data := client.recv(1 << 16):
                self.up += len(data)
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            back.join(10)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        try:
            while data := server.recv(1 << 16):
                self.down += len(data)
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        except OSError:
            return


def secured(serve: Serve, certificate: Path, key: Path) -> Serve:
    """``serve`` with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def handshake_and_serve(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            serve(wrapped)

    return handshake_and_serve


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for the loopback interface, and its key. Raises FileNotFoundError without openssl."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:far.invalid"),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


def read_request(connection: socket.socket) -> tuple[str, bytes] | None:
    """Head and body of a request; None at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(1 << 16)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    text = head.decode("latin-1")
    length = next((int(line.split(":")[1]) for line in text.splitlines() if line.lower().startswith("content-l")), 0)
    while len(body) < length:
        body += connection.recv(1 << 16)
    return text, body


def scripted(reply: Callable[[str, bytes], bytes | None]) -> Serve:
    """Answer requests on a connection until ``reply(head, body)`` returns None."""

    def serve(connection: socket.socket) -> None:
        while (request := read_request(connection)) is not None:
            answer = reply(*request)
            if answer is None:
                return
            connection.sendall(answer)

    return serve


def response(body: bytes, *, status: str = "200 OK", headers: str = "", chunked: int = 0) -> bytes:
    """A response, in chunks of ``chunked`` bytes or with a content length."""
    if not chunked:
        return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
    pieces = [body[index : index + chunked] for index in range(0, len(body), chunked)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
    return f"HTTP/1.1 {status}\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode("latin-1") + framed
