"""The verifier of a remote model: its command line, its processes, and the link to it."""

from __future__ import annotations

import importlib.util
import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec import drafters
from ianvs_specdec.backends.child import ServerProcess
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.common.errors import UserError, missing_package_error, unknown
from ianvs_specdec.records.identity import FileDigests

if TYPE_CHECKING:
    from ianvs_specdec.backends.split.options import RemoteOptions
    from ianvs_specdec.net.split.split_pb2 import Model

PACKAGES = ("grpc", "google.protobuf")
FIRST_PATIENCE = 60.0
"""Seconds for the first answer of a verifier: with TLS over a slow link, several round trips."""
PLAIN = "autoregressive"
ENGINE_OPTIONS = ("dtype", "device", "threads", "quantization", "engine", "emulate", "emulate_scale")
"""Options of our engine that are passed to the verifier."""


def check_packages() -> None:
    """Raise UserError with the install command if gRPC is missing."""
    for package in PACKAGES:
        if importlib.util.find_spec(package.partition(".")[0]) is None:
            missing = ModuleNotFoundError(name=package)
            raise missing_package_error(missing) or missing


class VerifierModel:
    """The verifier's model and options, as a back end of our engine that is not loaded here.

    ``beside``: how the verifier drafts in mode ``stream``, a mapping with ``backend`` and its options, or empty.
    Raises UserError.
    """

    def __init__(self, model: str, options: Mapping[str, Any], beside: Any) -> None:
        if not isinstance(beside, Mapping):
            raise UserError("beside must be a mapping with backend and its options", key="beside")
        self._model, self._options, self._beside = model, options, beside
        if beside.get("acceptance", "coupled") != "coupled":
            raise UserError("beside: acceptance must be coupled if a verifier drafts", key="beside")
        name, known = beside.get("backend", PLAIN), {method.backend: key for key, method in drafters.METHODS.items()}
        if name not in known:
            raise unknown("back end of our engine in beside", name, known, key="beside")
        kind = engine_backend(known[name])
        own = {key: value for key, value in beside.items() if key != "backend"}
        for key in own:
            if key not in (options_of := drafters.method_of(kind.method).options.names()):
                raise unknown(f"option of {name} in beside", key, options_of, key="beside")
        try:
            self._llm = kind(model, **options, **own)
        except UserError as error:
            if error.key in ENGINE_OPTIONS:
                raise
            raise UserError(f"beside: {error}", key="beside") from error

    def plain(self) -> VerifierModel:
        """The same model without drafts of the verifier."""
        return VerifierModel(self._model, self._options, {})

    @property
    def drafts(self) -> bool:
        """Whether the verifier can draft."""
        return self._llm.method != PLAIN

    def command(self, length: str | None) -> list[str]:
        """The command line of the verifier; ``length``: its speculation length."""
        options = {"model": self._model, **self._options, "backend": PLAIN, **self._beside}
        # JSON is YAML, and has a form for every value in one line.
        given = [part for key, value in options.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        rule = [] if length is None else ["--length", length]
        return ["verifier", "--port", "0", "--grace", "0", *rule, *given]

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return self._llm.identity(digests)

    def check_files(self) -> None:
        self._llm.check_files()

    def hardware(self) -> dict[str, Any]:
        """Facts about the verifier's machine, which is this one."""
        emulated = {name: self._options[name] for name in ("emulate", "emulate_scale") if name in self._options}
        return {"device": self._llm.device_name, "verifier_threads": self._llm.options.threads, **emulated}


class Cloud:
    """A verifier behind a link: started with ``command``, or running at the address in ``options``.

    ``model``: what it serves; ``timed``: with the time of a layer.
    """

    model: Model

    def __init__(
        self,
        options: RemoteOptions,
        command: Sequence[str],
        link: Mapping[str, Any],
        folder: Path,
        *,
        timed: bool = False,
    ) -> None:
        from ianvs_specdec.backends.split.edge.connection import Access, Connection
        from ianvs_specdec.backends.split.edge.settings import read_token

        self._processes: list[ServerProcess] = []
        self._asking = threading.Lock()
        try:
            address = options.verifier or self._start(command)
            path = [f"--{name.replace('_', '-')}={value}" for name, value in link.items()]
            via = self._start(["link", "--listen", "127.0.0.1:0", "--to", address, *path])
            token_file, authority = (Path(file) if file else None for file in (options.token_file, options.verifier_ca))
            self.connection = Connection(Access(address, read_token(token_file), authority, via))
            self.model = self.connection.describe(FIRST_PATIENCE, timed=timed)
            if options.verifier is not None:
                _check_fingerprint(self.model, folder)
        except BaseException:
            self.close()
            raise

    def _start(self, arguments: Sequence[str]) -> str:
        self._processes.append(ServerProcess(arguments))
        return self._processes[-1].address

    def bytes(self) -> tuple[int, int]:
        """Bytes through the link so far, up and down."""
        with self._asking:
            status = self._processes[-1].ask()
        return status["up"]["bytes"], status["down"]["bytes"]

    def check(self) -> None:
        """Raise UserError if a process has ended."""
        for process in self._processes:
            process.check()

    @property
    def processes(self) -> tuple[int, ...]:
        """Ids of the started processes, the verifier first."""
        return tuple(process.pid for process in self._processes)

    def close(self) -> None:
        if hasattr(self, "connection"):
            self.connection.close()
        # The link first: it would report that the verifier is gone.
        while self._processes:
            self._processes.pop().close()


def _check_fingerprint(model: Model, folder: Path) -> None:
    """Raise UserError if a verifier serves another model than ``folder``, which may have no weights."""
    has_weights = any(folder.glob("*.safetensors"))
    if has_weights and not bytes.fromhex(FileDigests(None).folder(folder)).startswith(model.fingerprint):
        reason = f"the verifier serves {model.name}, whose files are not those of {folder}"
        raise UserError(f"{reason}: name the folder that it was started with", key="verifier")
