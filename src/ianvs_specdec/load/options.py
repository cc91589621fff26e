"""Types of the options of ``specdec load`` and ``specdec simulate``: values of YAML, or texts of a command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.sampling import MAX_COUNT
from ianvs_specdec.common.settings import Settings, described_as, validator


class Objectives(Settings):
    """Service-level objectives of a request, in seconds."""

    noun: ClassVar[str] = "objective"

    ttft: Annotated[float, Field(gt=0)] | None = None
    tpot: Annotated[float, Field(gt=0)] | None = None
    latency: Annotated[float, Field(gt=0)] | None = None


def _typed(value: Any) -> Any:
    if isinstance(value, str):
        for parse in (int, float, json.loads):
            with suppress(ValueError):
                return parse(value)
    return value


def _named(value: Any) -> Any:
    """``a=1,b=2`` as a mapping; ``1`` alone has the name ""."""
    if not isinstance(value, str):
        return value
    parts = [item.rpartition("=") for item in value.split(",")]
    if len({name for name, _, _ in parts}) < len(parts):
        raise ValueError(f"must give each value once, not {value!r:.60}")
    return {name: _typed(number) for name, _, number in parts}


def split(value: Any) -> list[Any]:
    """Split at commas outside of brackets: ``table:[[1,4,5],[5,64,0]]`` is one policy."""
    if not isinstance(value, str):
        return list(value) if isinstance(value, (list, tuple)) else [value]
    parts, depth = [""], 0
    for character in value:
        depth += (character in "[(") - (character in "])")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def different(values: Collection[Any]) -> None:
    if not all(values) or not 0 < len(values) == len(set(values)):
        raise ValueError(f"must be different from each other, and at least one, not {list(values)!r:.60}")


def kept_to(check: Callable[[Any], Any]) -> AfterValidator:
    """The values that ``check`` accepts. A fault lies with the option, whatever key the check names."""

    def checked(value: Any) -> None:
        try:
            check(value)
        except UserError as error:
            raise UserError(str(error)) from error

    return validator(checked)


TYPED = BeforeValidator(_typed)
Whole = Annotated[int, Field(ge=0, le=MAX_COUNT), TYPED, described_as("a whole number from 0")]
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT), TYPED, described_as("a whole number from 1")]
Named = Annotated[dict[str, float], BeforeValidator(_named)]
Slo = Annotated[
    Named, kept_to(Objectives.parse), described_as("limits in seconds, such as ttft=0.5,tpot=0.05,latency=5")
]
Rates = Annotated[
    tuple[Annotated[float, Field(gt=0)], ...],
    BeforeValidator(lambda value: tuple(map(_typed, split(value)))),
    validator(different),
    AfterValidator(lambda rates: tuple(sorted(rates))),
    described_as("numbers above 0, such as 1,2,4"),
]
