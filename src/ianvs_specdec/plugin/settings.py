"""Hyperparameters of an edge or cloud model, validated without loading anything."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field
from pydantic.fields import FieldInfo

from ianvs_specdec.backends import BACKENDS, backend, resolve
from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.prompts import check_model
from ianvs_specdec.common.errors import UserError, unknown, warn_once
from ianvs_specdec.common.sampling import MAX_COUNT, MAX_TEMPERATURE, MIN_TEMPERATURE, Sampling
from ianvs_specdec.common.settings import Settings, Text, collect_errors, raise_all, takes_mapping, validated, validator
from ianvs_specdec.records.cost import PRICES, cost

SAME_AS_EDGE = "same-as-edge"
"""Value of the cloud model's ``backend``: the back end of the edge model in the same test case."""

MAX_SAMPLES = 100
Price = Annotated[float, Field(ge=0, le=MAX_COUNT, description="per million tokens")]


def _warm(value: float) -> None:
    if not MIN_TEMPERATURE <= value <= MAX_TEMPERATURE:
        raise ValueError(
            f"must be from {MIN_TEMPERATURE:g} (at 0 all samples are equal) to {MAX_TEMPERATURE:g}, not {value!r}"
        )


def _unescaped(value: tuple[str, ...]) -> None:
    if "\\\\n" in repr(value):
        warn_once(f'stop: {value!r} contains a backslash and a letter; a line break in YAML is "\\n", in double quotes')


class GeneralSettings(Settings):
    """Hyperparameters that are neither sampling parameters nor options of a back end."""

    model: Text = Field(description="a folder in Hugging Face format, a GGUF file, or the name that a server knows")
    backend: Text = Field("autoregressive", description="the back end; the cloud's may be same-as-edge")
    use_cache: bool = Field(True, description="replay answers that the journal has")
    price_prompt: Price | None = None
    price_completion: Price | None = None
    price_cached: Price | None = Field(None, description="cached tokens of a prompt; by default they cost as others")
    max_failures: Annotated[int, Field(ge=0, le=MAX_COUNT)] = Field(
        0, description="failed queries before the test case fails"
    )
    samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = Field(1, description="number of answers per query")
    samples_temperature: Annotated[float, validator(_warm)] = Field(
        1.0, description="the temperature of all answers but the first"
    )


@functools.cache
def options() -> dict[str, list[FieldInfo]]:
    """The options of all back ends with their declarations."""
    found: dict[str, list[FieldInfo]] = {}
    for known in BACKENDS:
        for name, declared in backend(known).Options.model_fields.items():
            found.setdefault(name, []).append(declared)
    return found


@dataclass(frozen=True)
class ModelSettings:
    """The validated hyperparameters of an edge or cloud model."""

    general: GeneralSettings
    sampling: Sampling
    options: Mapping[str, Any]

    @classmethod
    def parse(cls, hyperparameters: Mapping[str, Any], *, follows_edge: bool = False) -> ModelSettings:
        """Raises UserError with the ``key`` at fault. ``follows_edge`` allows the back end ``same-as-edge``."""
        check_no_secrets(hyperparameters)
        given = {key: value for key, value in hyperparameters.items() if value is not None}
        if isinstance(given.get("top_k"), Mapping):
            reason = "top_k is of how many tokens sampling draws one, a whole number; the breadth of EAGLE's tree is"
            raise UserError(f"{reason} eagle_topk", key="top_k")
        own_options = {key: value for key, value in given.items() if key in options()}
        _, _, own, sampling = collect_errors(
            lambda: _check_names(hyperparameters),
            lambda: _check_options(given.get("backend", "autoregressive"), own_options),
            lambda: GeneralSettings.parse({key: given[key] for key in GeneralSettings.names() if key in given}),
            lambda: validated(Sampling, {key: given[key] for key in Sampling.names() if key in given}),
        )
        _unescaped(sampling.stop)
        settings = cls(own, sampling, own_options)
        if not (follows_edge and settings.backend == SAME_AS_EDGE):
            settings.checked(settings.backend)
        return settings

    @property
    def backend(self) -> str:
        return resolve(self.general.backend)

    def checked(self, name: str) -> LLM:
        """The model of the back end ``name``, not loaded. Checks everything that depends on the back end."""
        if backend(name, key="backend").local:
            check_model(self.general.model)
        llm = self.llm(name)
        llm.check(self.sampling)
        if self.general.samples > 1:
            llm.check(replace(self.sampling, temperature=self.general.samples_temperature))
        return llm

    def check_files(self) -> None:
        """``LLM.check_files`` of the back end; for same-as-edge, of the back ends named in the options."""
        if self.backend != SAME_AS_EDGE:
            self.checked(self.backend).check_files()
            return
        keys = [name for value in self.options.values() if isinstance(value, Mapping) for name in value]
        for name in dict.fromkeys(map(resolve, filter(lambda key: isinstance(key, str), keys))):
            if name not in BACKENDS:
                continue
            try:
                llm = self.checked(name)
            except UserError:
                # The edge may never use this back end.
                continue
            llm.check_files()

    def llm(self, name: str) -> LLM:
        """The model of the back end ``name``, not loaded, with the options of that back end."""
        return backend(name, key="backend")(self.general.model, **_options_of(name, self.options))

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float | None:
        """Price of an answer; None without prices. ``prompt_tokens`` include ``cached_tokens``."""
        prices = {name: getattr(self.general, name) for name in PRICES}
        return cost(prices, prompt_tokens, completion_tokens, cached_tokens)


def _check_names(hyperparameters: Mapping[str, Any]) -> None:
    raise_all([unknown("hyperparameter", key, names(), key=key) for key in hyperparameters if key not in names()])


def _check_options(name: Any, given: Mapping[str, Any]) -> None:
    """Raise UserError for wrong options of a known back end."""
    if isinstance(name, str) and resolve(name) in BACKENDS:
        chosen = backend(name)
        validated(chosen.Options, _options_of(name, given), f"option of {chosen.backend}")


def _options_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the back end."""
    own = backend(name, key="backend").Options.model_fields
    # Also of the others, to find misspelled back ends.
    chosen = {key: _for_backend(key, value, name) for key, value in given.items()}
    return {key: value for key, value in chosen.items() if key in own}


def _for_backend(key: str, value: Any, name: str) -> Any:
    """The value of an option for the back end ``name``. An option may be a mapping from back ends to values; if its
    values are mappings themselves, only if all keys are back ends with mappings. A length may map numbers."""
    if not isinstance(value, Mapping) or (value and all(isinstance(known, int) for known in value)):
        return value
    values = {resolve(known): item for known, item in value.items()}
    whole = all(known in BACKENDS and (item is None or isinstance(item, Mapping)) for known, item in values.items())
    if any(takes_mapping(declared) for declared in options()[key]) and not whole:
        return value
    for known in values:
        if known not in BACKENDS:
            raise unknown(f"back end in {key}", str(known), BACKENDS, key=key)
    return values.get(resolve(name))


def names() -> tuple[str, ...]:
    """All hyperparameters of a model."""
    return tuple(dict.fromkeys((*GeneralSettings.names(), *Sampling.names(), *options())))
