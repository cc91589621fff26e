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
    constructor's keyword arguments and what all methods have. ``about`` says in a line where the drafts come from.
    ``looks``: option -> "module:function", which looks at the file or folder that it names, for a target of given
    sizes, and imports nothing heavy. ``target_look``: "module:function", the same with all options and the target's
    folder. ``tokens_only``: whether it needs nothing of the target but its tokens, so that another machine can verify
    its drafts. ``chain``: options by default where the target has no cheap way to compute branches.
    """

    drafter: str
    backend: str
    options: type[MethodOptions] = MethodOptions
    about: str = ""
    looks: Mapping[str, str] = field(default_factory=dict)
    target_look: str = ""
    tokens_only: bool = False
    chain: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self, given: MethodOptions) -> dict[str, Any]:
        """The options that are the constructor's arguments, as far as they are set."""
        return {name: value for name, value in given.explicit().items() if name not in DraftingOptions.model_fields}

    @property
    def class_name(self) -> str:
        return f"{self.backend[0].upper()}{self.backend[1:]}LLM"


_EAGLE = {"head": "ianvs_specdec.drafters.eagle.layout:check_files"}

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
        looks=_EAGLE,
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
        looks={"draft": "ianvs_specdec.drafters.draft_model.files:check_files"},
        target_look="ianvs_specdec.drafters.draft_model.files:check_target",
    ),
    "medusa": Method(
        "ianvs_specdec.drafters.medusa.drafter:Medusa",
        "MedusaSpecDec",
        options.MedusaOptions,
        about="drafts of extra output heads, one for each position ahead (Medusa)",
        looks={"head": "ianvs_specdec.drafters.medusa.layout:check_files"},
        chain={"tree": "chain"},
    ),
    "eagle": Method(
        "ianvs_specdec.drafters.eagle.drafter:Eagle",
        "EagleSpecDec",
        options.EagleOptions,
        about="drafts of a one-layer head on the target's hidden states (EAGLE-1, -2 and -3)",
        looks=_EAGLE,
        chain={"tree": "chain"},
    ),
    "mtp": Method(
        "ianvs_specdec.drafters.mtp.drafter:Mtp",
        "MTPSpecDec",
        options.MtpOptions,
        about="drafts of the layers for multi-token prediction in the model's own checkpoint (MTP)",
        target_look="ianvs_specdec.drafters.mtp.files:check_target",
    ),
    "dflash": Method(
        "ianvs_specdec.drafters.dflash.drafter:DFlash",
        "DFlashSpecDec",
        options.DFlashOptions,
        about="drafts of a small transformer, a whole block in one forward (DFlash)",
        looks={"head": "ianvs_specdec.drafters.dflash.layout:check_files"},
    ),
    "own": Method(
        "ianvs_specdec.drafters.custom:own",
        "SpecDec",
        options.OwnOptions,
        about="drafts of a class of your own, path/to/file.py:Class",
    ),
}

ALIASES = {"none": "autoregressive"}
"""Older names, which are accepted."""

RULES = get_args(options.Acceptance)
"""How sampled tokens are accepted (see ``engine.acceptance``)."""


def method_of(name: str) -> Method:
    """The method of this name. Raises ``UserError`` for an unknown one."""
    if resolve(name) not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[resolve(name)]


def default_length(name: str) -> str:
    """The speculation length of a method for which none was chosen, as ``lengths.create`` takes it."""
    length = method_of(name).options.model_fields.get("length")
    return "fixed:0" if length is None else str(length.default)


def check(name: str, settings: Mapping[str, Any]) -> MethodOptions:
    """The options of a method. Raises ``UserError``, with the ``key`` at fault, for what it does not take.

    Imports nothing but a file that an option names, so that a configuration can be checked before anything is loaded.
    """
    method = method_of(name)
    found = validated(method.options, settings, f"option of {name}")
    if method.options is options.OwnOptions:
        pkgutil.resolve_name("ianvs_specdec.drafters.custom:check")(**method.arguments(found))
    return found


def check_files(name: str, settings: Mapping[str, Any], target: ModelSizes | None, folder: Path | None = None) -> None:
    """Look at the files and folders among the options. Reads headers, imports no torch.

    Raises ``UserError``, with the ``key`` at fault, for one that is not what the method reads, or not for a ``target``
    of these sizes, in this ``folder``, None where they are not known.
    """
    method = method_of(name)
    for key, place in method.looks.items():
        if settings.get(key) is not None:
            pkgutil.resolve_name(place)(settings[key], target)
    if method.target_look and folder is not None:
        pkgutil.resolve_name(method.target_look)(settings, folder)


def create(name: str, settings: Mapping[str, Any] | None = None, *, trees: bool = True) -> Drafter:
    """A drafter by name, with values for its ``options``. ``trees``: the target computes branches in one step.

    Raises ``UserError`` for an unknown method or option and for a value the drafter does not take.
    """
    method = method_of(name)
    given = check(name, {**({} if trees else method.chain), **(settings or {})})
    drafter: Drafter = pkgutil.resolve_name(method.drafter)(**method.arguments(given))
    return drafter


def replace_files(name: str, settings: Mapping[str, Any], replace: Callable[[Path], Any]) -> dict[str, Any]:
    """The options with ``replace(path)`` in place of each file or folder that they name, so that contents can stand
    for paths. Among the options of a class of the user's own, a text that is the path of something is one.
    """
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
    """The name of a method, of which an older one may be given."""
    return ALIASES.get(name, name)
