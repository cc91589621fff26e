"""Hyperparameters on the command line: a YAML file, overridden by single options."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import yaml

from ianvs_specdec.commands.arguments import option
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import properties, table, validated
from ianvs_specdec.common.types import Sampling

Parsed = TypeVar("Parsed")
Check = Callable[[dict[str, Any]], None]
AMBIGUOUS = re.compile(r"[-+]?0[\d_]+|[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?|\d{4}-\d\d?-\d\d?([Tt \t].*)?")
"""Scalars that YAML 1.1 misreads: 010 is 8, 1:30 is 90."""
EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
"""A number in JSON and YAML 1.2, such as 1e-3, but a text in YAML 1.1."""


class _Loader(yaml.SafeLoader):
    pass


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", EXPONENT, list("-+.0123456789"))


@dataclass(frozen=True)
class Hyperparameters:
    """``values`` of a file (content ``text``) and the command line; ``arguments``: key -> argument that set it."""

    values: Mapping[str, Any]
    file: Path | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    text: str = ""

    def check(self, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
        """``parse(values)``; its errors name the file and line or the argument that set the value."""
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
    """The chat template's arguments, read by ``template_sampling``."""
    variables, clock = "--chat-template-kwargs", "time that it sees, such as 2026-11-28T09:00"
    example = 'variables of the chat template, such as {"enable_thinking": false}'
    parser.add_argument(variables, type=partial(_yaml, where=variables), default={}, metavar="JSON", help=example)
    parser.add_argument("--template-time", default="", metavar="TIME", help=clock)


def template_sampling(options: argparse.Namespace) -> Sampling:
    """Default sampling parameters with the arguments of ``add_template``. Raises UserError."""
    try:
        return validated(Sampling, {name: getattr(options, name) for name in ("chat_template_kwargs", "template_time")})
    except UserError as error:
        raise UserError(f"--{str(error).replace('_', '-', 2)}") from error


def add_model(parser: argparse.ArgumentParser, side: str, *, required: bool = False) -> None:
    """The arguments of a side's model, read by ``model_of``."""
    add = parser.add_argument
    add(f"--{side}", type=Path, required=required, metavar="FILE", help=f"YAML file with the {side} model's settings")
    add(f"--{side}-backend", metavar="NAME", help="its back end (default: the file's, or autoregressive)")
    item = "a hyperparameter of it, as samples=3; repeatable"
    add(f"--{side}-set", action="append", default=[], metavar="K=V", help=item)


def model_of(options: argparse.Namespace, side: str, check: Check, *more: str) -> Mapping[str, Any]:
    """The checked hyperparameters of a side's model; ``more``: ``key=value`` defaults. Raises UserError."""
    file, items, backend = (getattr(options, name) for name in (side, f"{side}_set", f"{side}_backend"))
    own = read_hyperparameters(file, [*more, *items], f"--{side}-set", {f"--{side}-backend": backend})
    if not own.values.get("model"):
        raise UserError(f"no {side} model: give --{side} FILE with its settings, or --{side}-set model=DIR")
    own.check(check)
    return own.values


def add_settings(parser: argparse.ArgumentParser, kind: Any, *without: str) -> None:
    """An option for each setting that ``kind`` declares, with text values, read by ``settings_of``."""
    for name, _, default, description in table(kind):
        if name not in without:
            known = default and isinstance(default, (int, float, str)) and default not in ("needed", "optional")
            shown = f" (default {default})" if known else ""
            parser.add_argument(option(name), metavar=name.upper(), help=f"{description}{shown}")


def settings_of(options: argparse.Namespace, kind: Any) -> dict[str, Any]:
    """Argument -> value of the options of ``add_settings``, for ``read_hyperparameters``."""
    return {option(name): getattr(options, name) for name in properties(kind) if hasattr(options, name)}


def read_hyperparameters(
    file: Path | None, items: Sequence[str], argument: str, named: Mapping[str, Any] | None = None
) -> Hyperparameters:
    """Hyperparameters of a file, of ``items`` (``key=value``) given by the repeatable ``argument``, and of ``named``
    (argument -> value), whose key is the argument's name without its side."""
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
            raise UserError(f"{argument} {item}: write it as {argument} key=value")
        arguments[key] = f"{argument} {key}"
        values[key] = _yaml(value, arguments[key])
    for name, given in (named or {}).items():
        if given is not None:
            key = re.sub(r"^--(edge-|cloud-)?", "", name).replace("-", "_")
            arguments[key], values[key] = name, given
    return Hyperparameters(values, file, arguments, text)


def _yaml(text: str, where: str) -> Any:
    try:
        for token in yaml.scan(text):
            if isinstance(token, yaml.ScalarToken) and token.plain and AMBIGUOUS.fullmatch(token.value):
                read = f"YAML reads {token.value} as {yaml.safe_load(token.value)}"
                line = f"{where}:{token.start_mark.line + 1}" if "\n" in text else where
                raise UserError(f"{line}: {read}: write a number in plain digits, a text in quotes")
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        raise UserError(f"{where}{line}: not valid YAML: {getattr(error, 'problem', None) or error}") from error
