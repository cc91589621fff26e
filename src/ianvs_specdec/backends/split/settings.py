"""The options of ``SplitSpecDec`` that are mappings, checked before anything is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ianvs_specdec import drafters
from ianvs_specdec.backends.base import check_threads
from ianvs_specdec.backends.split.edge.settings import IN_FLIGHT, EdgeSettings
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.net.link.path import Path as NetworkPath
from ianvs_specdec.records.identity import FileDigests

OWN = ("method", "mode", "in_flight", "outage", "patience", "dtype", "threads")
"""Keys of ``edge`` that are no options of a method."""
DTYPES = ("float32", "bfloat16", "float16")
PATIENCE = 60.0
"""Seconds until a verifier counts as gone, unless told otherwise: longer than most outages of a link."""


def chosen(options: Mapping[str, Any], key: str) -> Any:
    """The value of the option ``edge`` or ``beside``. A text is one that the option ``named`` explains, so that a word
    stands in tables of test cases. Raises ``UserError``."""
    value, named = options.get(key), options.get("named") or {}
    if not isinstance(named, Mapping) or not all(isinstance(one, Mapping) for one in named.values()):
        raise UserError("named must be a mapping from names to mappings", key="named")
    if not isinstance(value, str) or not named:
        return value
    if value not in named:
        raise unknown(f"name for {key} among those of the option named", value, named, key=key)
    return named[value]


@dataclass(frozen=True)
class EdgeSide:
    """The edge's part. ``dtype`` and ``threads`` are the draft model's."""

    settings: EdgeSettings
    dtype: str
    threads: int | None

    @classmethod
    def parse(cls, given: Any, threads: int | None) -> EdgeSide:
        """Of the mapping ``edge``; ``threads`` where it names none. Raises ``UserError``, all at the key ``edge``."""
        if not isinstance(given, Mapping):
            example = "edge: {method: draft_model, draft: FOLDER}, or edge: {mode: stream}"
            raise UserError(
                f"back end SplitSpecDec needs a mapping that says what the edge does: {example}", key="edge"
            )
        values = {key: value for key, value in given.items() if value is not None}
        method = values.get("method")
        if method is not None:
            method = drafters.resolve(str(method))
        known = (*OWN, *(() if method is None else drafters.method_of(method).options.names()))
        for key in values:
            if key not in known:
                raise unknown("key of edge", key, known, key="edge")
        if (dtype := values.get("dtype", DTYPES[0])) not in DTYPES:
            raise unknown("dtype of edge", dtype, DTYPES, key="edge")
        try:
            check_threads(values.get("threads"))
            settings = EdgeSettings(
                method,
                {key: value for key, value in values.items() if key not in OWN},
                values.get("mode", "auto"),
                values.get("in_flight", IN_FLIGHT),
                # A job that waits for ever for a verifier that is gone tells nobody.
                values.get("outage", "fail"),
                values.get("patience", PATIENCE),
            )
        except UserError as error:
            raise UserError(f"edge: {error}", key="edge") from error
        return cls(settings, dtype, values.get("threads", threads))

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        """What the answers and their times depend on."""
        settings = self.settings
        if settings.method is None:
            return {"mode": settings.mode}
        options = drafters.replace_files(settings.method, settings.options, digests.path)
        told = {"method": settings.method, "options": options, "mode": settings.mode, "in_flight": settings.in_flight}
        # The other policies change no answer.
        alone = {"outage": settings.outage} if settings.outage == "edge" else {}
        return {**told, **alone, "dtype": self.dtype, "threads": self.threads}


def link_options(given: Any) -> dict[str, Any]:
    """The options of a path: of the name of a preset, or of a mapping. Raises ``UserError`` at the key ``link``."""
    options = {"preset": given} if isinstance(given, str) else dict(given or {})
    try:
        NetworkPath.parse(options)
    except UserError as error:
        raise UserError(f"link: {error}", key="link") from error
    return {name: value for name, value in options.items() if value is not None}
