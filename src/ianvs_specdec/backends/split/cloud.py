"""A verifier and the link to it: started for a model, and ended with it."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.backends.child import ServerProcess
from ianvs_specdec.common.errors import UserError, not_installed
from ianvs_specdec.records.identity import FileDigests

if TYPE_CHECKING:
    from ianvs_specdec.backends.split.options import FarOptions
    from ianvs_specdec.net.split.split_pb2 import Model

PACKAGES = ("grpc", "google.protobuf")
FIRST_PATIENCE = 60.0
"""Seconds in which a verifier has to answer at first: over a slow link, and with TLS, that is several round trips."""


def check_packages() -> None:
    """Raise what says how to install gRPC where it is not there."""
    for package in PACKAGES:
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            missing = ModuleNotFoundError(name=package)
            raise not_installed(missing) or missing


class Cloud:
    """The verifier that ``command`` starts, or the one at the address in ``options``, behind ``link``. ``model`` is
    what it serves, with a layer's time where that is asked for (``timed``)."""

    model: Model

    def __init__(
        self, options: FarOptions, command: Sequence[str], link: Mapping[str, Any], folder: Path, *, timed: bool = False
    ) -> None:
        from ianvs_specdec.backends.split.edge.connection import Access, Connection
        from ianvs_specdec.backends.split.edge.settings import read_token

        self._started: list[ServerProcess] = []
        self._asking = threading.Lock()
        try:
            address = options.verifier or self._start(command)
            path = [f"--{name.replace('_', '-')}={value}" for name, value in link.items()]
            via = self._start(["link", "--listen", "127.0.0.1:0", "--to", address, *path])
            token_file, authority = (
                None if file is None else Path(file) for file in (options.token_file, options.verifier_ca)
            )
            self.connection = Connection(Access(address, read_token(token_file), authority, via))
            self.model = self.connection.describe(FIRST_PATIENCE, timed=timed)
            if options.verifier is not None:
                _check_model(self.model, folder)
        except BaseException:
            self.close()
            raise

    def _start(self, arguments: Sequence[str]) -> str:
        self._started.append(ServerProcess(arguments))
        return self._started[-1].address

    def bytes(self) -> tuple[int, int]:
        """Up and down, that passed the link so far."""
        with self._asking:
            told = self._started[-1].ask()
        return told["up"]["bytes"], told["down"]["bytes"]

    def check(self) -> None:
        """Raise ``UserError`` where a process has ended."""
        for process in self._started:
            process.check()

    @property
    def processes(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self._started)

    def close(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()
        # The link first: it would report that the verifier is gone.
        while self._started:
            self._started.pop().close()


def _check_model(model: Model, folder: Path) -> None:
    """Raise ``UserError`` where a verifier serves another model than ``folder`` has, which may be a tokenizer alone."""
    has_weights = any(folder.glob("*.safetensors"))
    if has_weights and not bytes.fromhex(FileDigests(None).folder(folder)).startswith(model.fingerprint):
        reason = f"the verifier serves {model.name}, whose files are not those of {folder}"
        raise UserError(f"{reason}: name the folder that it was started with", key="verifier")
