"""The drafting methods by name. A new method is one file and one line in ``METHODS``."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import UserError, unknown

if TYPE_CHECKING:
    from ianvs_specdec.engine.contracts import Drafter
    from ianvs_specdec.models.layout import ModelSizes


class Code:
    """An option that names a class in a file: ``path/to/file.py:Class``."""


Option = type | tuple[str, ...]
"""What an option takes: int (a whole number from 1), float (0 to 1), Path (a file or folder), bool, one of some words,
``Code``, or dict (the options of that class)."""


@dataclass(frozen=True)
class Method:
    """``drafter`` is "module:Class"; ``backend`` is the method's name as a back end in Ianvs; ``length`` is the default
    speculation length; ``options`` are the constructor's keyword arguments, those in ``required`` without a default.
    ``about`` says in a line where the drafts come from. ``recorded``: option -> its name in the journal's key, where
    that is another. ``looks``: option -> "module:function", which looks at the file or folder that it names, for a
    target of given sizes, and imports nothing heavy. ``depending``: option -> its default in words, where that depends
    on the other options. ``remote``: whether it needs nothing of the target but its tokens, so that another machine can
    verify its drafts. ``chain``: options by default where the target has no cheap way to compute branches.
    """

    drafter: str
    backend: str
    length: str
    options: Mapping[str, Option] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    about: str = ""
    recorded: Mapping[str, str] = field(default_factory=dict)
    looks: Mapping[str, str] = field(default_factory=dict)
    depending: Mapping[str, str] = field(default_factory=dict)
    remote: bool = False
    chain: Mapping[str, Any] = field(default_factory=dict)

    @property
    def class_name(self) -> str:
        """The name of the back end's class."""
        return f"{self.backend[0].upper()}{self.backend[1:]}LLM"


_EAGLE = {"head": "ianvs_specdec.drafters.eagle.layout:check_files"}

METHODS: dict[str, Method] = {
    "autoregressive": Method(
        "ianvs_specdec.drafters.autoregressive:Autoregressive",
        "autoregressive",
        "fixed:0",
        about="no drafts: what every speculative method is measured against",
    ),
    "prompt_lookup": Method(
        "ianvs_specdec.drafters.prompt_lookup:PromptLookup",
        "PromptLookup",
        "fixed:10",
        {"max_ngram": int},
        about="drafts copied from earlier in the context (prompt lookup)",
        remote=True,
    ),
    "predicted_output": Method(
        "ianvs_specdec.drafters.predicted_output:PredictedOutput",
        "PredictedOutput",
        "fixed:64",
        {"resync": int},
        about="drafts from a text that the user expects back (predicted output)",
        remote=True,
    ),
    "lookahead": Method(
        "ianvs_specdec.drafters.lookahead.drafter:lookahead",
        "LadeSpecDec",
        "full",
        {"level": int, "window": int, "guess": int, "start": ("official", "prompt")},
        about="drafts from n-grams that the target generates on the side (lookahead decoding)",
        depending={"level": "5", "window": "4, with start=official 7", "guess": "2, with start=official 7"},
    ),
    "rest": Method(
        "ianvs_specdec.drafters.rest:Rest",
        "RestSpecDec",
        "full",
        {"datastore": Path, "nodes": int},
        ("datastore",),
        about="drafts retrieved from a datastore of texts (REST)",
        remote=True,
    ),
    "suffix": Method(
        "ianvs_specdec.drafters.suffix.drafter:Suffix",
        "SuffixSpecDec",
        "full",
        {"datastore": Path, "head": Path, "min_match": int},
        about="drafts from the longest match in context and corpus, or of a head where the match is short (SAMD)",
        remote=True,
        looks=_EAGLE,
        depending={"min_match": "1, with a head 5"},
    ),
    "recycling": Method(
        "ianvs_specdec.drafters.recycling:Recycling",
        "RecyclingSpecDec",
        "full",
        {"nodes": int, "successors": int, "order": int},
        chain={"successors": 1},
        about="drafts from the successors that the target considered before (token recycling)",
    ),
    "draft_model": Method(
        "ianvs_specdec.drafters.draft_model.drafter:DraftModel",
        "DraftModelSpecDec",
        "fixed:5",
        {"draft": Path, "branches": int},
        ("draft",),
        about="drafts of a smaller language model",
        remote=True,
        looks={"draft": "ianvs_specdec.drafters.draft_model.files:check_files"},
    ),
    "medusa": Method(
        "ianvs_specdec.drafters.medusa.drafter:Medusa",
        "MedusaSpecDec",
        "full",
        {"head": Path, "tree": ("static", "dynamic", "chain"), "nodes": int},
        ("head",),
        about="drafts of extra output heads, one for each position ahead (Medusa)",
        looks={"head": "ianvs_specdec.drafters.medusa.layout:check_files"},
        chain={"tree": "chain"},
    ),
    "eagle": Method(
        "ianvs_specdec.drafters.eagle.drafter:Eagle",
        "EagleSpecDec",
        "full",
        {"head": Path, "tree": ("static", "dynamic", "chain"), "total_tokens": int, "depth": int, "eagle_topk": int},
        ("head",),
        about="drafts of a one-layer head on the target's hidden states (EAGLE-1, -2 and -3)",
        # Journals hold answers under the option's old name.
        recorded={"eagle_topk": "top_k"},
        looks=_EAGLE,
        chain={"tree": "chain"},
        depending={
            "total_tokens": "60 with tree=dynamic",
            "depth": "7, with tree=chain 6",
            "eagle_topk": "10 with tree=dynamic",
        },
    ),
    "own": Method(
        "ianvs_specdec.drafters.custom:own",
        "SpecDec",
        "full",
        {"drafter": Code, "drafter_options": dict},
        ("drafter",),
        about="drafts of a class of your own, path/to/file.py:Class",
    ),
}

ALIASES = {"none": "autoregressive"}
"""Older names, which are accepted."""

RULES = ("rejection", "coupled", "typical")
COMMON: dict[str, Option] = {"acceptance": RULES}
"""Options of every method that are not the drafter's: how sampled tokens are accepted (see ``engine.acceptance``)."""


def options(name: str) -> tuple[str, ...]:
    """The option names of a method. ``length`` is among them for every method that drafts; the caller hands it to
    ``lengths``, and ``COMMON`` to the loop."""
    method = _method(name)
    return (*method.options, *COMMON, *(() if method.length == "fixed:0" else ("length",)))


def default_length(name: str) -> str:
    """The speculation length of a method for which none was chosen, as ``lengths.create`` takes it."""
    return _method(name).length


def check(name: str, settings: Mapping[str, Any]) -> None:
    """Raise ``UserError``, with the ``key`` at fault, for an option or value that the method does not take.

    Imports nothing but a file that an option names, so that a configuration can be checked before anything is loaded.
    """
    method = _method(name)
    for key, value in settings.items():
        if key not in options(name):
            raise unknown(f"option of {name}", key, options(name), key=key)
        if key != "length":
            _check_value(name, key, value, {**method.options, **COMMON}[key])
    for key in method.required:
        if settings.get(key) is None:
            raise UserError(f"method {name} needs {key}: {_wanted(method.options[key])}", key=key)
    if Code in method.options.values():
        importlib.import_module(method.drafter.partition(":")[0]).check(**_own(method, settings))


def check_files(name: str, settings: Mapping[str, Any], target: ModelSizes | None) -> None:
    """Look at the files and folders among the options. Reads headers, imports no torch.

    Raises ``UserError``, with the ``key`` at fault, for one that is not what the method reads, or not for a ``target``
    of these sizes, None where they are not known.
    """
    for key, place in _method(name).looks.items():
        if settings.get(key) is not None:
            module, _, function = place.partition(":")
            getattr(importlib.import_module(module), function)(settings[key], target)


def _check_value(name: str, key: str, value: Any, option: Option) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if isinstance(option, tuple):
        if value not in option:
            raise unknown(f"{key} of {name}", str(value), option, key=key)
        return
    right = {
        int: number and isinstance(value, int) and value >= 1,
        float: number and 0 <= value <= 1,
        bool: isinstance(value, bool),
        Path: bool(value) and isinstance(value, (str, Path)) and Path(value).exists(),
        Code: isinstance(value, str),
        dict: isinstance(value, Mapping),
    }
    if not right[option]:
        raise UserError(f"method {name}: {key} must be {_wanted(option)}, got {value!r}", key=key)


def _wanted(option: Option) -> str:
    if isinstance(option, tuple):
        return f"one of {', '.join(option)}"
    return {
        int: "a whole number of at least 1",
        float: "a number from 0 to 1",
        bool: "true or false",
        Path: "an existing file or folder",
        Code: "a file and a class in it, path/to/file.py:Class",
        dict: "a mapping",
    }[option]


def create(name: str, settings: Mapping[str, Any] | None = None, *, trees: bool = True) -> Drafter:
    """A drafter by name, with values for its ``options``; ``length`` and ``COMMON`` may be among them and are passed
    over here. ``trees``: the target computes branches in one step.

    Raises ``UserError`` for an unknown method or option and for a value the drafter does not take.
    """
    method = _method(name)
    settings = {**({} if trees else method.chain), **(settings or {})}
    check(name, settings)
    module, _, cls = method.drafter.partition(":")
    drafter: Drafter = getattr(importlib.import_module(module), cls)(**_own(method, settings))
    return drafter


def replace_files(name: str, settings: Mapping[str, Any], replace: Callable[[Path], Any]) -> dict[str, Any]:
    """The options with ``replace(path)`` in place of each file or folder that they name, so that contents can stand
    for paths. Among the options of a class of the user's own, a text that is the path of something is one.
    """
    kinds = _method(name).options

    def replaced(key: str, value: Any) -> Any:
        if kinds.get(key) is Path:
            return replace(Path(value))
        if kinds.get(key) is Code:
            file, _, cls = value.rpartition(":")
            return {"file": replace(Path(file)), "class": cls}
        if kinds.get(key) is dict:
            named = {each for each, item in value.items() if item and isinstance(item, str) and Path(item).exists()}
            return {each: replace(Path(item)) if each in named else item for each, item in value.items()}
        return value

    return {key: value if value is None else replaced(key, value) for key, value in settings.items()}


def describe(name: str) -> list[tuple[str, str, Any]]:
    """A method's options besides those that all have: name, what it takes, and the default; "needed" where there is
    none, "optional" where it is nothing."""
    method = _method(name)
    defaults = {**_defaults(method), **method.depending, **dict.fromkeys(method.required, "needed")}
    values = [(key, _wanted(option), defaults.get(key)) for key, option in method.options.items()]
    return [(key, wanted, "optional" if value is None else value) for key, wanted, value in values]


def _defaults(method: Method) -> dict[str, Any]:
    """The defaults of the drafter's arguments, read from its source: to import it is to import torch."""
    module, _, name = method.drafter.partition(":")
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if getattr(node, "name", None) == name)
    body = found.body if isinstance(found, ast.ClassDef) else [found]
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name in ("__init__", name):
            given = node.args.defaults
            return dict(zip([a.arg for a in node.args.args][-len(given) :], map(ast.literal_eval, given), strict=False))
    return {}


def resolve(name: str) -> str:
    """The name of a method, of which an older one may be given."""
    return ALIASES.get(name, name)


def _own(method: Method, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key in method.options}


def _method(name: str) -> Method:
    if resolve(name) not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[resolve(name)]
