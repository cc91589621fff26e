"""A link: listens on an address and forwards connections over an emulated path."""

from __future__ import annotations

import asyncio
import pathlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from ianvs_specdec.net.addresses import bind, format_address, parse_address
from ianvs_specdec.net.link.path import Path
from ianvs_specdec.net.link.record import LinkRecord
from ianvs_specdec.net.link.relay import Relay, exact_loop

Result = TypeVar("Result")
ANY_PORT = "127.0.0.1:0"


def print_warning(line: str) -> None:
    print(f"specdec link: {line}", file=sys.stderr, flush=True)


class Link:
    """``with Link(to="127.0.0.1:8000", path=Path(delay=0.025)) as link:`` connects to ``link.address`` instead.

    The context manager runs the link in a thread, for tests and small benchmarks: other threads that compute delay
    deliveries by some milliseconds (counted in ``summary()``). To measure times, use the command ``specdec link``.

    ``to``, ``listen``: ``HOST:PORT``; the constructor starts to listen. ``record``: file to write. ``warn`` gets a line
    if the target cannot be reached. Raises UserError, or OSError for the record, also at the end of ``with``.
    """

    def __init__(
        self,
        to: str,
        path: Path | None = None,
        listen: str = ANY_PORT,
        record: pathlib.Path | None = None,
        warn: Callable[[str], None] = print_warning,
    ) -> None:
        self._path, self._target, self._warn = path or Path(), parse_address(to, "to"), warn
        where = parse_address(listen, "listen", any_port=True)
        self._listener = bind(*where, listening=True)
        self.address = format_address(where[0], self._listener.getsockname()[1])
        try:
            self._record = LinkRecord(record, {"listen": self.address, "to": to, **self._path.to_json()})
        except OSError:
            self._listener.close()
            raise

    async def run(self, ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Run in the current event loop until ``stop`` is set. ``ready`` is called once connections are accepted."""
        self._loop, self._relay = asyncio.get_running_loop(), Relay(self._path, self._target, self._record, self._warn)
        await self._relay.listen(self._listener)
        ready()
        try:
            await stop.wait()
        finally:
            await self._relay.close()

    def __enter__(self) -> Link:
        self._started: Future[None] = Future()
        self._over: Future[None] = Future()
        threading.Thread(target=self._main, name="link", daemon=True).start()
        self._started.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._over.result()

    def outage(self, seconds: float) -> None:
        """Start an outage. Connections stay open or are reset, see ``Path.on_outage``."""
        self._call(lambda: self._relay.outage(seconds))

    def cut(self) -> None:
        """Reset all connections at both ends."""
        self._call(self._relay.cut)

    def current_summary(self) -> dict[str, Any]:
        """``summary`` for callers on the event loop of ``run``."""
        return self._relay.summary()

    def summary(self) -> dict[str, Any]:
        """The summary of the record so far."""
        return self._call(self._relay.summary)

    def _main(self) -> None:
        async def main() -> None:
            self._stop = asyncio.Event()
            await self.run(lambda: self._started.set_result(None), self._stop)

        try:
            with asyncio.Runner(loop_factory=exact_loop) as runner:
                runner.run(main())
        except BaseException as error:
            (self._over if self._started.done() else self._started).set_exception(error)
        else:
            self._over.set_result(None)

    def _call(self, function: Callable[[], Result]) -> Result:
        async def call() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()
