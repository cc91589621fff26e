"""Declarative settings: name, type, bounds, default and description.

Error messages, ``--help`` and the JSON schema for editors are derived from these declarations.
"""

from __future__ import annotations

import functools
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ianvs_specdec.common.errors import UserError, unknown

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

T = TypeVar("T")


def validator(check: Callable[[Any], Any]) -> AfterValidator:
    """A validator that calls ``check``, which raises UserError, or ValueError with a text that follows the setting's
    name."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except UserError as error:
            raise ValueError(error) from error
        return value

    return AfterValidator(validate)


def described_as(text: str) -> Any:
    """Describe the valid values of a field if its type does not."""
    return Field(json_schema_extra={"wanted": text})


def _existing(value: str | Path) -> str | Path:
    if not str(value) or not Path(value).exists():
        raise ValueError(f"must be an existing file or folder, not {value!r}")
    return value


EXISTING = AfterValidator(_existing)
ExistingPath = Annotated[str | Path, EXISTING, described_as("an existing file or folder")]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


def is_path(field: FieldInfo) -> bool:
    """Whether a field names an existing file or folder."""
    parts = (field.metadata, *(getattr(part, "__metadata__", ()) for part in get_args(field.annotation)))
    return any(EXISTING in part for part in parts)


def takes_mapping(field: FieldInfo) -> bool:
    """Whether a field's value may be a mapping."""
    types = (field.annotation, *get_args(field.annotation))
    return any(dict in (kind, get_origin(kind), *map(get_origin, get_args(kind)[:1])) for kind in types)


class Settings(BaseModel):
    """Named settings. ``noun``: what error messages call an unknown name."""

    model_config = ConfigDict(**STRICT, frozen=True, defer_build=True)
    noun: ClassVar[str] = "setting"

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> Self:
        """Settings from a mapping; null stands for the default. Raises UserError as ``validated`` does."""
        return validated(cls, values, cls.noun)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(cls.model_fields)

    def explicit(self) -> dict[str, Any]:
        """The values that were set explicitly."""
        return {name: getattr(self, name) for name in type(self).model_fields if name in self.model_fields_set}


def validated(kind: Callable[..., T], values: Mapping[str, Any], noun: str = "setting") -> T:
    """``kind``, a pydantic model or dataclass, from ``values``; null stands for the default.

    Raises UserError for the first error, with its ``key``; ``others`` holds the other errors.
    """
    given = {name: value for name, value in values.items() if value is not None}
    for name in given:
        if not isinstance(name, str):
            raise unknown(noun, name, properties(kind))
    try:
        return kind(**given)
    except ValidationError as error:
        reasons: dict[str, list[Any]] = {}
        for reason in error.errors(include_url=False):
            reasons.setdefault(str(reason["loc"][0]) if reason["loc"] else "", []).append(reason)
        faults = [_fault(kind, name, found[0], given, noun) for name, found in reasons.items()]
    raise_all(faults)
    raise AssertionError("pydantic reported no error")


def collect_errors(*steps: Callable[[], Any]) -> list[Any]:
    """The results of all steps. Raises the UserErrors of all steps as one."""
    results, faults = [], list[UserError]()
    for step in steps:
        try:
            results.append(step())
        except UserError as error:
            faults += [error, *error.others]
    raise_all(faults)
    return results


def raise_all(faults: Sequence[UserError]) -> None:
    """Raise the first error, with the ``others``, if there is any."""
    if faults:
        faults[0].others = tuple(faults[1:])
        raise faults[0]


def table(kind: Any) -> Iterator[tuple[str, str, Any, str]]:
    """Name, valid values, default and description of each setting of a pydantic model or dataclass. The default is a
    value, "needed", "optional", or a text if it depends on other settings."""
    for name, schema in properties(kind).items():
        default = "needed" if schema["required"] else schema.get("unset", schema.get("default"))
        yield name, describe_value(schema), "optional" if default is None else default, schema.get("description", "")


def describe_value(schema: Mapping[str, Any]) -> str:
    """The values of a JSON schema as text: ``a whole number from 1``."""
    if "wanted" in schema:
        return str(schema["wanted"])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(describe_value(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if choices := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return ("one of " if len(choices) > 1 else "") + ", ".join(map(str, choices))
    kinds = {"integer": "a whole number", "number": "a number", "boolean": "true or false", "string": "a text"}
    kinds |= {"array": "a list", "object": "a mapping"}
    return kinds.get(str(schema.get("type")), "a value") + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high, above = (schema.get(name) for name in ("minimum", "maximum", "exclusiveMinimum"))
    if above is not None:
        return f" above {above:g}" + (f" and at most {high:g}" if high is not None else "")
    if low is not None:
        return f" from {_plain(low)}" + (f" to {_plain(high)}" if high is not None else "")
    return f" of at most {_plain(high)}" if high is not None else ""


def _plain(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


@functools.cache
def properties(kind: Any) -> dict[str, dict[str, Any]]:
    """The JSON schema of each setting, without null, and whether it is ``required``."""
    schema = TypeAdapter(kind).json_schema()
    required = schema.get("required", ())
    return {
        name: {**_without_null(one), "required": name in required} for name, one in schema.get("properties", {}).items()
    }


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` without the alternative null."""
    others = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(others) != 1:
        return schema
    return {**others[0], **{name: value for name, value in schema.items() if name != "anyOf"}}


def _fault(kind: Any, name: str, reason: Any, values: Mapping[str, Any], noun: str) -> UserError:
    if reason["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown(noun, name, properties(kind), key=name)
    own = reason.get("ctx", {}).get("error")
    if own is not None:
        cause = own.args[0] if own.args else own
        if isinstance(cause, UserError):
            return UserError(str(cause), key=cause.key or name)
        word = str(own).partition(" ")[0]
        return UserError(f"{name} {own}".strip(), key=name or (word if word in properties(kind) else None))
    schema = properties(kind)[name]
    if reason["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return UserError(f"{name} is missing: {schema.get('description') or describe_value(schema)}", key=name)
    value, choices = values[name], schema.get("enum")
    if len(reason["loc"]) > 1 and schema.get("type") == "array" and "wanted" not in schema:
        return UserError(f"{name} has {reprlib.repr(reason['input'])}: {reason['msg'].lower()}", key=name)
    if choices and isinstance(value, (str, bool)):
        return unknown(name, value, choices, key=name)
    return UserError(f"{name} must be {describe_value(schema)}, not {reprlib.repr(value)}", key=name)
