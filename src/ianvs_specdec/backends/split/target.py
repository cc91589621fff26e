"""The model that a verifier computes, as the options of ``SplitSpecDec`` describe it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ianvs_specdec import drafters
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.records.identity import FileDigests

PLAIN = "autoregressive"
ENGINE = ("dtype", "device", "threads", "quantization", "engine", "emulate", "emulate_scale")
"""Options of our engine that a verifier takes, whatever it drafts with."""


class VerifierModel:
    """The model that the verifier computes, as one of our engine, which is not loaded here.

    ``beside`` is how it drafts in mode stream, a mapping with ``backend`` and its options, empty where it does not.
    Raises ``UserError``.
    """

    def __init__(self, model: str, options: Mapping[str, Any], beside: Any) -> None:
        if not isinstance(beside, Mapping):
            raise UserError("beside must be a mapping with backend and its options", key="beside")
        self._model, self._options, self._beside = model, options, beside
        if beside.get("acceptance", "coupled") != "coupled":
            raise UserError("beside: acceptance is coupled where a verifier drafts", key="beside")
        name, known = beside.get("backend", PLAIN), {method.backend: key for key, method in drafters.METHODS.items()}
        if name not in known:
            raise unknown("back end of our engine in beside", name, known, key="beside")
        chosen = engine_backend(known[name])
        own = {key: value for key, value in beside.items() if key != "backend"}
        for key in own:
            if key not in (options_of := drafters.method_of(chosen.method).options.names()):
                raise unknown(f"option of {name} in beside", key, options_of, key="beside")
        try:
            self._llm = chosen(model, **options, **own)
        except UserError as error:
            if error.key in ENGINE:
                raise
            raise UserError(f"beside: {error}", key="beside") from error

    def plain(self) -> VerifierModel:
        """The same model without drafts of the verifier."""
        return VerifierModel(self._model, self._options, {})

    @property
    def drafts(self) -> bool:
        """Whether the verifier can draft itself."""
        return self._llm.method != PLAIN

    def command(self, length: str | None) -> list[str]:
        """How a verifier for it is called, with a rule for how much of a draft it verifies."""
        told = {"model": self._model, **self._options, "backend": PLAIN, **self._beside}
        # JSON is YAML, and has a form for every value in one line.
        given = [part for key, value in told.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        rule = [] if length is None else ["--length", length]
        return ["verifier", "--port", "0", "--grace", "0", *rule, *given]

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return self._llm.identity(digests)

    def check_files(self) -> None:
        """Look at the headers of the model's files, and of those that the verifier drafts with."""
        self._llm.check_files()

    def hardware(self) -> dict[str, Any]:
        """What is known of the verifier's machine, which is this one."""
        emulated = {name: self._options[name] for name in ("emulate", "emulate_scale") if name in self._options}
        return {"device": self._llm.device_name, "verifier_threads": self._llm.options.threads, **emulated}
