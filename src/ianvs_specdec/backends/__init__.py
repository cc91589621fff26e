"""Back ends: one class each, imported on first use.

The classes have the names of Ianvs' own example:
``from ianvs_specdec.backends import HuggingfaceLLM, APIBasedLLM``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import unknown
from ianvs_specdec.drafters import METHODS

if TYPE_CHECKING:
    from ianvs_specdec.backends.base import LLM

BACKENDS = {
    "huggingface": "ianvs_specdec.backends.huggingface:HuggingfaceLLM",
    **{method.backend: f"ianvs_specdec.backends.specdec:{method.class_name}" for method in METHODS.values()},
    "SplitSpecDec": "ianvs_specdec.backends.split.backend:SplitSpecDecLLM",
    "SlicedSpecDec": "ianvs_specdec.backends.split.sliced.backend:SlicedSpecDecLLM",
    "llamacpp": "ianvs_specdec.backends.llamacpp.backend:LlamaCppLLM",
    "vllm": "ianvs_specdec.backends.vllm.backend:VllmLLM",
    "eagle-llm": "ianvs_specdec.backends.official.backend:EagleLlmLLM",
    "lade": "ianvs_specdec.backends.official.backend:LadeLLM",
    "api": "ianvs_specdec.backends.api.backend:APIBasedLLM",
}
"""Name in YAML -> ``module:class``. These modules import no heavy library before a model is loaded."""

ALIASES = {"specdec": "autoregressive"}
"""Older names, accepted everywhere."""


def resolve(name: str) -> str:
    """The current name of a back end."""
    return ALIASES.get(name, name)


def backend(name: str, *, key: str | None = None) -> type[LLM]:
    """The class of a back end. Raises UserError for an unknown name in configuration key ``key``."""
    if resolve(name) not in BACKENDS:
        raise unknown("back end", name, BACKENDS, key=key)
    module, _, class_name = BACKENDS[resolve(name)].partition(":")
    found: type[LLM] = getattr(importlib.import_module(module), class_name)
    return found


def __getattr__(name: str) -> Any:
    for backend_name, place in BACKENDS.items():
        if place.endswith(f":{name}"):
            return backend(backend_name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
