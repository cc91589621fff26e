"""A model's hyperparameters as a command is given them: a YAML file of settings, and single ones in their place."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import properties, table, validated
from ianvs_specdec.common.types import Sampling

Parsed = TypeVar("Parsed")
Check = Callable[[dict[str, Any]], None]
UNLIKE = re.compile(r"[-+]?0[\d_]+|[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?|\d{4}-\d\d?-\d\d?([Tt \t].*)?")
"""What YAML 1.1 does not read as it looks: 010 is 8, 1:30 is 90."""
EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
"""A number of JSON and YAML 1.2, such as 1e-3; YAML 1.1 has a text there."""


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))


@dataclass(frozen=True)
class Hyperparameters:
    """``values`` from a file and the command line; ``arguments``: by which argument those were given."""

    values: Mapping[str, Any]
    file: Path | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    def taking(self, values: Mapping[str, Any]) -> Hyperparameters:
        """The same places, with other values."""
        return replace(self, values=values)

    def check(self, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
        """What ``parse`` makes of the values. What it finds wrong with one is told with the place it was given at."""
        try:
            return parse(dict(self.values))
        except UserError as error:
            place = self._place(str(error.key or ""))
            raise UserError(f"{place}: {error}" if place else str(error), key=error.key) from error

    def _place(self, key: str) -> str:
        if key in self.arguments:
            return self.arguments[key]
        for number, line in enumerate(self.text.splitlines(), start=1):
            if key and line.partition(":")[0] == key:
                return f"{self.file}:{number}"
        return str(self.file or "")


def folder_of(model: Path) -> Path:
    """The folder that ``--model`` names, or that of the import of a GGUF file. Raises UserError."""
    from ianvs_specdec.backends.prompts import local_folder

    if (folder := local_folder(str(model))) is None:
        raise UserError(f"--model {model} is not a folder of a Hugging Face model, or a GGUF file")
    return folder


def add_template(parser: argparse.ArgumentParser) -> None:
    """The arguments that a chat template is told, which ``told`` makes a ``Sampling`` of."""
    parser.add_argument(
        "--chat-template-kwargs",
        type=partial(_yaml, where="--chat-template-kwargs"),
        default={},
        metavar="JSON",
        help='variables of the chat template, such as {"enable_thinking": false}',
    )
    parser.add_argument(
        "--template-time", default="", metavar="TIME", help="time of its clock, such as 2026-11-28T09:00"
    )


def told(options: argparse.Namespace) -> Sampling:
    """What ``add_template`` reads. Raises UserError."""
    try:
        return validated(Sampling, {name: getattr(options, name) for name in ("chat_template_kwargs", "template_time")})
    except UserError as error:
        raise UserError(f"--{str(error).replace('_', '-', 2)}") from error


def add_model(parser: argparse.ArgumentParser, side: str, *, required: bool = False) -> None:
    """The arguments that name the model of a side and its settings, read by ``model_of``."""
    parser.add_argument(
        f"--{side}", type=Path, required=required, metavar="FILE", help=f"YAML file with the {side} model's settings"
    )
    parser.add_argument(
        f"--{side}-backend", metavar="NAME", help="its back end (default: the file's, or autoregressive)"
    )
    parser.add_argument(
        f"--{side}-set",
        action="append",
        default=[],
        metavar="K=V",
        help="a hyperparameter of it, as samples=3; repeatable",
    )


def model_of(options: argparse.Namespace, side: str, check: Check, *more: str) -> Mapping[str, Any]:
    """The hyperparameters that these arguments and ``more`` items give, checked. Raises UserError."""
    file, items, backend = (getattr(options, name) for name in (side, f"{side}_set", f"{side}_backend"))
    own = read_hyperparameters(file, [*more, *items], f"--{side}-set", {f"--{side}-backend": backend})
    if not own.values.get("model"):
        raise UserError(f"which model is the {side}? Give --{side} FILE with its settings, or --{side}-set model=DIR")
    own.check(check)
    return own.values


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def add_settings(parser: argparse.ArgumentParser, kind: Any, *without: str) -> None:
    """An option for each setting that ``kind`` declares, read by ``settings_of``. Their values are texts."""
    for name, _, default, description in table(kind):
        if name not in without:
            known = default and isinstance(default, (int, float, str)) and default not in ("needed", "optional")
            shown = f" (default {default})" if known else ""
            parser.add_argument(option(name), metavar=name.upper(), help=f"{description}{shown}")


def settings_of(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """What ``add_settings`` reads, for ``read_hyperparameters``: argument -> value."""
    return {option(name): getattr(options, name) for name in properties(kind) if hasattr(options, name)}


def read_hyperparameters(
    file: Path | None, items: Sequence[str], option: str, named: Mapping[str, Any] | None = None
) -> Hyperparameters:
    """From a file and ``items`` such as ``key=value``, given by the argument ``option``. ``named`` holds values that
    have arguments of their own: argument -> value. The key is the argument's name without its side.
    """
    text = ""
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    values = _yaml(text, str(file)) or {}
    if not isinstance(values, dict):
        raise UserError(f"{file}: expected hyperparameters, one key: value per line")
    arguments: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"{option} {item}: write it as {option} key=value")
        arguments[key] = f"{option} {key}"
        values[key] = _yaml(value, arguments[key])
    for argument, given in (named or {}).items():
        if given is not None:
            key = re.sub(r"^--(edge-|cloud-)?", "", argument).replace("-", "_")
            arguments[key], values[key] = argument, given
    return Hyperparameters(values, file, arguments, text)


def _yaml(text: str, where: str) -> Any:
    try:
        for token in yaml.scan(text):
            if isinstance(token, yaml.ScalarToken) and token.plain and UNLIKE.fullmatch(token.value):
                read = f"YAML reads {token.value} as {yaml.safe_load(token.value)}"
                line = f"{where}:{token.start_mark.line + 1}" if "\n" in text else where
                raise UserError(f"{line}: {read}: write a number in plain digits, a text in quotes")
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UserError(f"{where}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
