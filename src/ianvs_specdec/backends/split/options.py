"""Options of the back ends ``SplitSpecDec`` and ``SlicedSpecDec``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from ianvs_specdec import drafters
from ianvs_specdec.backends.specdec import EngineOptions
from ianvs_specdec.backends.split.edge.settings import EdgeSettings, check_remote_drafting
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import Count, Text, validator
from ianvs_specdec.drafters.options import Length
from ianvs_specdec.net.link.path import Path as NetworkPath

EDGE_KEYS = tuple(name for name in EdgeSettings.names() if name != "options")
"""Keys of ``edge`` that are not options of its method."""
DEFAULTS = {"outage": "fail", "patience": 60.0}
"""Of ``edge`` in a job, which must not wait forever."""


def _check_named(value: dict[str, Any]) -> None:
    if not all(isinstance(one, dict) for one in value.values()):
        raise ValueError("must be a mapping from names to mappings")


class RemoteOptions(EngineOptions):
    """Options of both back ends."""

    edge: Text | dict[str, Any] | None = Field(None, description="how the edge drafts, or a name among named")
    named: Annotated[dict[str, Any], validator(_check_named)] | None = Field(
        None, description="mappings that edge and beside may name"
    )
    link: Text | dict[str, Any] | None = Field(None, description="a preset of specdec link, or its options")
    verifier: Text | None = Field(None, description="the address of a verifier that runs; by default one is started")
    verifier_ca: Text | None = Field(None, description="the file of the authority that vouches for the verifier")
    token_file: Text | None = Field(None, description="the file with the token that the verifier knows the edge by")
    acceptance: Literal["coupled"] | None = Field(None, description="how sampled drafts are accepted")


class SplitOptions(RemoteOptions):
    """Options of ``SplitSpecDec``."""

    length: Length | None = Field(None, description="how much of a draft the verifier verifies")
    beside: Text | dict[str, Any] | None = Field(None, description="how the verifier drafts in mode stream")


class SlicedOptions(RemoteOptions):
    """Options of ``SlicedSpecDec``."""

    cut: Literal["auto"] | Count = Field(
        "auto", description="the layers of the edge; auto = where a token takes the least time"
    )
    states: Literal["float32", "bfloat16", "int8"] = Field(
        "float32", description="how hidden states travel; others than float32 are lossy"
    )
    patience: Annotated[float, Field(gt=0)] = Field(60.0, description="seconds until a verifier counts as gone")


def named_value(value: Any, named: Mapping[str, Any] | None, key: str) -> Any:
    """The value of option ``key``: for a text the mapping with this name in ``named``. Raises UserError."""
    if not isinstance(value, str) or not named:
        return value
    if value not in named:
        raise unknown(f"name for {key} among those of the option named", value, named, key=key)
    return named[value]


def edge_settings(given: Any, threads: int | None) -> EdgeSettings:
    """Settings in the mapping ``edge``, with default ``threads``. Raises UserError with key ``edge``."""
    if not isinstance(given, Mapping):
        example = "edge: {method: draft_model, draft: FOLDER}, or edge: {mode: stream}"
        raise UserError(f"back end SplitSpecDec needs the mapping edge: {example}", key="edge")
    values = {key: value for key, value in given.items() if value is not None}
    if "method" in values:
        values["method"] = drafters.resolve(str(values["method"]))
    methods = drafters.method_of(values["method"]).options.names() if "method" in values else ()
    for key in values:
        if key not in (*EDGE_KEYS, *methods):
            raise unknown("key of edge", key, (*EDGE_KEYS, *methods), key="edge")
    own = {key: value for key, value in values.items() if key in EDGE_KEYS}
    options = {key: value for key, value in values.items() if key not in EDGE_KEYS}
    try:
        return EdgeSettings.parse({**DEFAULTS, "threads": threads, **own, "options": options})
    except UserError as error:
        raise UserError(f"edge: {error}", key="edge") from error


def drafting(given: Any) -> tuple[str, dict[str, Any]]:
    """The method in the mapping ``edge`` of a sliced model, and its options. Raises UserError with key ``edge``."""
    values = {key: value for key, value in (given or {}).items() if value is not None}
    method = drafters.resolve(str(values.pop("method", "autoregressive")))
    try:
        drafters.method_of(method)
        (drafters.check if method == "autoregressive" else check_remote_drafting)(method, values)
    except UserError as error:
        raise UserError(f"edge: {error}", key="edge") from error
    return method, values


def link_options(given: Any) -> dict[str, Any]:
    """The options of ``specdec link`` in a preset's name or a mapping. Raises UserError with key ``link``."""
    options = {"preset": given} if isinstance(given, str) else dict(given or {})
    try:
        NetworkPath.parse(options)
    except UserError as error:
        raise UserError(f"link: {error}", key="link") from error
    return {name: value for name, value in options.items() if value is not None}
