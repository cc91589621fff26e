"""The method and the sampling parameters that ``specdec decode`` is called with."""

from __future__ import annotations

import argparse
import json
from typing import Any

from ianvs_specdec import drafters
from ianvs_specdec.commands.hyperparameters import told
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import build
from ianvs_specdec.common.types import Sampling


def method_of(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Name and options of the method."""
    method = "own" if options.drafter else drafters.resolve(options.method)
    known = drafters.method_of(method).options.names()
    settings: dict[str, Any] = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--set {item}: write it as --set key=value")
        if key not in known and not options.drafter:
            raise unknown(f"option of {method} in --set", key, known)
        settings[key] = _value(value)
    if options.drafter:
        own = {key: settings.pop(key) for key in list(settings) if key not in ("length", "acceptance")}
        settings |= {"drafter": options.drafter, "drafter_options": own}
    for key, folder, what in (("head", options.head, "head"), ("draft", options.draft, "model")):
        if folder is not None:
            if key not in known:
                raise UserError(f"--{key}: method {method} has no draft {what}")
            settings[key] = str(folder)
    return method, settings


def _value(text: str) -> Any:
    """Numbers and true/false as such, anything else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text


def sampling_of(options: argparse.Namespace) -> Sampling:
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "seed")
    chosen = {name: getattr(options, name) for name in names}
    try:
        return build(Sampling, {**vars(told(options)), **chosen, "max_tokens": options.max_new_tokens})
    except UserError as error:
        raise UserError(str(error).replace("max_tokens", "--max-new-tokens")) from error
