"""The options of the back end ``SplitSpecDec``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ianvs_specdec.backends.specdec import EngineOptions
from ianvs_specdec.common.settings import Text, rule
from ianvs_specdec.drafters.options import Length


def _check_named(value: dict[str, Any]) -> None:
    if not all(isinstance(one, dict) for one in value.values()):
        raise ValueError("must be a mapping from names to mappings")


class SplitOptions(EngineOptions):
    """What the edge does (``edge``), what lies between (``link``) and what the verifier computes."""

    edge: Text | dict[str, Any] | None = Field(None, description="how the edge drafts, or a name among named")
    named: Annotated[dict[str, Any], rule(_check_named)] | None = Field(
        None, description="mappings that edge and beside may name"
    )
    link: Text | dict[str, Any] | None = Field(None, description="a preset of specdec link, or its options")
    verifier: Text | None = Field(None, description="the address of a verifier that runs; by default one is started")
    verifier_ca: Text | None = Field(None, description="the file of the authority that vouches for the verifier")
    token_file: Text | None = Field(None, description="the file with the token that the verifier knows the edge by")
    length: Length | None = Field(None, description="how much of a draft the verifier verifies")
    acceptance: Literal["coupled"] | None = Field(None, description="how sampled drafts are accepted")
    beside: Text | dict[str, Any] | None = Field(None, description="how the verifier drafts in mode stream")
