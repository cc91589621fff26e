"""A verifier in this process, an edge for it, and a way between them that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from ianvs_specdec import drafters
from ianvs_specdec.backends.specdec import EngineLLM, engine_backend
from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.backends.split.edge.controller import Controller, Mode
from ianvs_specdec.backends.split.edge.decode import Edge, Finish
from ianvs_specdec.backends.split.edge.drafts import RemoteTarget
from ianvs_specdec.backends.split.edge.session import Outage
from ianvs_specdec.engine import Drafter
from ianvs_specdec.serving.verifier.server import Server
from ianvs_specdec.serving.verifier.service import Limits, Service, load_model, token_digest
from ianvs_specdec.serving.verifier.session import Metrics
from tests.support.servers import Listener

PATIENCE = 60.0


class Verifier:
    """``llm`` served on a port of this machine, by a thread."""

    def __init__(
        self,
        llm: EngineLLM,
        limits: Limits | None = None,
        tokens: Sequence[str] | None = None,
        credentials: object = None,
        length: str | None = None,
        port: int = 0,
    ) -> None:
        limits = limits or Limits()
        self.served = load_model(llm, length, limits.sessions)
        self.metrics = Metrics(self.served.name, llm.occupancy)
        known = None if tokens is None else [token_digest(token) for token in tokens]
        self.service = Service(self.served, limits, known, self.metrics)
        self._sessions, self._credentials, self._wanted = limits.sessions, credentials, port
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        assert self._ready.wait(PATIENCE)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = Server(self.service, self._sessions, self.served.target.window, self._credentials)
        self.port = self._server.bind("127.0.0.1", self._wanted)
        await self._server.run(self._ready.set, grace=0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join()

    def forget(self) -> None:
        """End all sessions."""
        done = threading.Event()

        def end() -> None:
            self.service.end_all("the next test")
            self.service.sessions.clear()
            done.set()

        self._loop.call_soon_threadsafe(end)
        assert done.wait(PATIENCE)

    def sample(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(f"specdec_verifier_{name}", labels) or 0.0


@contextmanager
def verifying(llm: EngineLLM, **options: object) -> Iterator[Verifier]:
    verifier = Verifier(llm, **options)  # type: ignore[arg-type]
    try:
        yield verifier
    finally:
        verifier.stop()


def loaded(folder: Path, method: str = "autoregressive", **options: object) -> EngineLLM:
    llm = engine_backend(method)(str(folder), threads=1, device="cpu", **options)
    llm.load()
    return llm


@contextmanager
def edge_of(
    access: Access | str,
    drafter: Drafter | Path,
    length: int | None = 4,
    outage: Outage | None = None,
    in_flight: int = 1,
    finish: Finish | None = None,
    mode: Mode = "split",
) -> Iterator[Edge]:
    """An edge that drafts with ``drafter``, or the draft model in that folder, for the verifier at an address."""
    if isinstance(drafter, Path):
        drafter = drafters.create("draft_model", {"draft": drafter})
    connection = Connection(Access(access) if isinstance(access, str) else access)
    try:
        model = connection.describe(PATIENCE)
        target = RemoteTarget(model.vocabulary, model.window or None, torch.float32, None)
        drafter.prepare(target)  # type: ignore[arg-type]
        controller = Controller(length, mode=mode, in_flight=in_flight if drafter.supports_continuations else 0)
        yield Edge(connection, model, drafter, target, controller, outage or Outage(), in_flight, finish)
    finally:
        connection.close()


class Breaking(Listener):
    """Passes everything on to another port, until it is cut."""

    def __init__(self, port: int) -> None:
        self.target = port
        self._ends: list[socket.socket] = []
        self._left: list[int] = []
        super().__init__(self._relay)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End all connections as they are."""
        ends, self._ends = self._ends, []
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut_after(self, *sizes: int) -> None:
        """Cut when so many further bytes have come back, once for each of ``sizes``: in the middle of an answer,
        however fast it comes.
        """
        self._left = list(sizes)

    def _relay(self, client: socket.socket) -> None:
        with socket.create_connection(("127.0.0.1", self.target)) as server:
            self._ends += [client, server]
            back = threading.Thread(target=_pass, args=(server, client, self._admit), daemon=True)
            back.start()
            _pass(client, server, lambda data: data)
            back.join(PATIENCE)

    def _admit(self, data: bytes) -> bytes:
        """What of ``data`` passes; after an empty answer nothing more does."""
        if not self._left:
            return data
        passes = data[: self._left[0]]
        self._left[0] -= len(passes)
        if not passes:
            del self._left[0]
        return passes


def _pass(source: socket.socket, sink: socket.socket, admit: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(OSError):
        while (data := source.recv(1 << 16)) and (passes := admit(data)):
            sink.sendall(passes)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
