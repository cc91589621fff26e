"""The drafting methods by name. A new method is a file, its options in ``options`` and a line in ``METHODS``."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ianvs_specdec.common.errors import unknown
from ianvs_specdec.common.settings import is_path, validated
from ianvs_specdec.drafters import options
from ianvs_specdec.drafters.options import DraftingOptions, MethodOptions

if TYPE_CHECKING:
    from ianvs_specdec.engine.contracts import Drafter
    from ianvs_specdec.models.validation import ModelSizes


@dataclass(frozen=True)
class Method:
    """``drafter`` is "module:Class"; ``backend`` is the method's name as a back end in Ianvs; ``options`` declares the
    constructor's keyword arguments and the options of all methods. ``about`` describes the drafts in one line.
    ``file_check``: "module:function", called with the options and the target's sizes and folder (see ``check_files``).
    ``tokens_only``: the drafter reads only tokens of the target, so that another machine can verify its drafts.
    ``chain``: default options for targets that cannot compute branches in one step.
    """

    drafter: str
    backend: str
    options: type[MethodOptions] = MethodOptions
    about: str = ""
    file_check: str = ""
    tokens_only: bool = False
    chain: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, given: MethodOptions) -> dict[str, Any]:
        """The constructor arguments among the options, if set."""
        return {name: value for name, value in given.explicit().items() if name not in DraftingOptions.model_fields}

    @property
    def class_name(self) -> str:
        return f"{self.backend[0].upper()}{self.backend[1:]}LLM"


_EAGLE = "ianvs_specdec.drafters.eagle.layout:check_files"

METHODS: dict[str, Method] = {
    "autoregressive": Method(
        "ianvs_specdec.drafters.autoregressive:Autoregressive",
        "autoregressive",
        about="no drafts: what every speculative method is measured against",
    ),
    "prompt_lookup": Method(
        "ianvs_specdec.drafters.prompt_lookup:PromptLookup",
        "PromptLookup",
        options.PromptLookupOptions,
        about="drafts copied from earlier in the context (prompt lookup)",
        tokens_only=True,
    ),
    "predicted_output": Method(
        "ianvs_specdec.drafters.predicted_output:PredictedOutput",
        "PredictedOutput",
        options.PredictedOutputOptions,
        about="drafts from a text that the user expects back (predicted output)",
        tokens_only=True,
    ),
    "lookahead": Method(
        "ianvs_specdec.drafters.lookahead.drafter:lookahead",
        "LadeSpecDec",
        options.LookaheadOptions,
        about="drafts from n-grams that the target generates on the side (lookahead decoding)",
    ),
    "rest": Method(
        "ianvs_specdec.drafters.rest:Rest",
        "RestSpecDec",
        options.RestOptions,
        about="drafts retrieved from a datastore of texts (REST)",
        tokens_only=True,
    ),
    "suffix": Method(
        "ianvs_specdec.drafters.suffix:Suffix",
        "SuffixSpecDec",
        options.SuffixOptions,
        about="drafts from the longest match in context and corpus, or of a head where the match is short (SAMD)",
        tokens_only=True,
        file_check=_EAGLE,
    ),
    "recycling": Method(
        "ianvs_specdec.drafters.recycling:Recycling",
        "RecyclingSpecDec",
        options.RecyclingOptions,
        chain={"successors": 1},
        about="drafts from the successors that the target considered before (token recycling)",
    ),
    "draft_model": Method(
        "ianvs_specdec.drafters.draft_model.drafter:DraftModel",
        "DraftModelSpecDec",
        options.DraftModelOptions,
        about="drafts of a smaller language model",
        tokens_only=True,
        file_check="ianvs_specdec.drafters.draft_model.files:check_files",
    ),
    "medusa": Method(
        "ianvs_specdec.drafters.medusa.drafter:Medusa",
        "MedusaSpecDec",
        options.MedusaOptions,
        about="drafts of extra output heads, one for each position ahead (Medusa)",
        file_check="ianvs_specdec.drafters.medusa.layout:check_files",
        chain={"tree": "chain"},
    ),
    "eagle": Method(
        "ianvs_specdec.drafters.eagle.drafter:Eagle",
        "EagleSpecDec",
        options.EagleOptions,
        about="drafts of a one-layer head on the target's hidden states (EAGLE-1, -2 and -3)",
        file_check=_EAGLE,
        chain={"tree": "chain"},
    ),
    "mtp": Method(
        "ianvs_specdec.drafters.mtp.drafter:Mtp",
        "MTPSpecDec",
        options.MtpOptions,
        about="drafts of the layers for multi-token prediction in the model's own checkpoint (MTP)",
        file_check="ianvs_specdec.drafters.mtp.files:check_files",
    ),
    "dflash": Method(
        "ianvs_specdec.drafters.dflash.drafter:DFlash",
        "DFlashSpecDec",
        options.DFlashOptions,
        about="drafts of a small transformer, a whole block in one forward (DFlash)",
        file_check="ianvs_specdec.drafters.dflash.layout:check_files",
    ),
    "own": Method(
        "ianvs_specdec.drafters.custom:own",
        "SpecDec",
        options.OwnOptions,
        about="drafts of a class of your own, path/to/file.py:Class",
    ),
}

ALIASES = {"none": "autoregressive"}
"""Older names that are still accepted."""

RULES = get_args(options.Acceptance)
"""Acceptance rules of sampled tokens (see ``engine.acceptance``)."""


def method_of(name: str) -> Method:
    """The method of this name. Raises ``UserError`` for an unknown one."""
    if resolve(name) not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[resolve(name)]


def default_length(name: str) -> str:
    """The default speculation length of a method, as ``lengths.create`` accepts it."""
    length = method_of(name).options.model_fields.get("length")
    return "fixed:0" if length is None else str(length.default)


def check(name: str, settings: Mapping[str, Any]) -> MethodOptions:
    """The options of a method. Raises ``UserError`` with the ``key`` at fault.

    Imports only a file that an option names, so that configurations are checked before anything is loaded.
    """
    method = method_of(name)
    found = validated(method.options, settings, f"option of {name}")
    if method.options is options.OwnOptions:
        pkgutil.resolve_name("ianvs_specdec.drafters.custom:check")(**method.arguments(found))
    return found


def check_files(name: str, settings: Mapping[str, Any], target: ModelSizes | None, folder: Path | None = None) -> None:
    """Check the files and folders among the options. Reads headers, imports no torch.

    Raises ``UserError`` with the ``key`` at fault if one has another format, or does not fit the ``target`` of these
    sizes in ``folder`` (None if unknown).
    """
    if place := method_of(name).file_check:
        pkgutil.resolve_name(place)(settings, target, folder)


def create(name: str, settings: Mapping[str, Any] | None = None, *, trees: bool = True) -> Drafter:
    """A drafter by name, with values of its ``options``. ``trees``: the target computes branches in one step.

    Raises ``UserError`` for an unknown method or option and for an invalid value.
    """
    method = method_of(name)
    given = check(name, {**({} if trees else method.chain), **(settings or {})})
    drafter: Drafter = pkgutil.resolve_name(method.drafter)(**method.arguments(given))
    return drafter


def replace_files(name: str, settings: Mapping[str, Any], replace: Callable[[Path], Any]) -> dict[str, Any]:
    """The options with ``replace(path)`` for each file or folder among them, so that contents can stand for paths. In
    the options of a user's class, every text that is an existing path counts."""
    fields = method_of(name).options.model_fields

    def replaced(key: str, value: Any) -> Any:
        if is_path(fields[key]):
            return replace(Path(value))
        if key == "drafter":
            file, _, cls = value.rpartition(":")
            return {"file": replace(Path(file)), "class": cls}
        if key == "drafter_options":
            named = {each for each, item in value.items() if item and isinstance(item, str) and Path(item).exists()}
            return {each: replace(Path(item)) if each in named else item for each, item in value.items()}
        return value

    return {key: value if value is None else replaced(key, value) for key, value in settings.items()}


def resolve(name: str) -> str:
    """The current name of a method."""
    return ALIASES.get(name, name)
