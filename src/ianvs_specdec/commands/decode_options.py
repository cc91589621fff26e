"""The method and the sampling parameters that ``specdec decode`` is called with."""

from __future__ import annotations

import argparse
from typing import Any

from ianvs_specdec import drafters
from ianvs_specdec.commands.hyperparameters import read_hyperparameters, told
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import validated
from ianvs_specdec.common.types import Sampling


def method_of(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Name and options of the method."""
    method = "own" if options.drafter else drafters.resolve(options.method)
    known = drafters.method_of(method).options.names()
    settings = dict(read_hyperparameters(None, options.set, "--set").values)
    for key in settings:
        if key not in known and not options.drafter:
            raise unknown(f"option of {method} in --set", key, known)
    if options.drafter:
        own = {key: settings.pop(key) for key in list(settings) if key not in ("length", "acceptance")}
        settings |= {"drafter": options.drafter, "drafter_options": own}
    for key, folder, what in (("head", options.head, "head"), ("draft", options.draft, "model")):
        if folder is not None:
            if key not in known:
                raise UserError(f"--{key}: method {method} has no draft {what}")
            settings[key] = str(folder)
    return method, settings


def sampling_of(options: argparse.Namespace) -> Sampling:
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "seed")
    chosen = {name: getattr(options, name) for name in names}
    try:
        return validated(Sampling, {**vars(told(options)), **chosen, "max_tokens": options.max_new_tokens})
    except UserError as error:
        raise UserError(str(error).replace("max_tokens", "--max-new-tokens")) from error
