"""The hyperparameters of an edge or cloud model, checked without loading anything."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ianvs_specdec.backends import BACKENDS, backend, resolve
from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.prompts import check_model
from ianvs_specdec.common.errors import UserError, unknown, warn_once
from ianvs_specdec.common.sampling import COLDEST, HOTTEST, LARGEST_COUNT, Sampling
from ianvs_specdec.records.cost import PRICES, cost

SAME_AS_EDGE = "same-as-edge"
"""Value of the cloud model's ``backend``: the back end that the edge model of the same test case has."""

_NUMBERS = ("temperature", "top_p", "repetition_penalty", "samples_temperature", *PRICES)
_SAMPLES = ("samples", "samples_temperature")
MOST_SAMPLES = 100
_WHOLE = ("max_tokens", "min_tokens", "top_k", "seed", "max_failures", "samples")


def option_names() -> tuple[str, ...]:
    """The options of all back ends. A grid crosses every option with every back end; each takes the ones that are its
    own.
    """
    return tuple(dict.fromkeys(name for known in BACKENDS for name in backend(known).option_names()))


def mapping_names() -> frozenset[str]:
    """The options of all back ends whose value is itself a mapping."""
    return frozenset(name for known in BACKENDS for name in backend(known).mappings)


@dataclass(frozen=True)
class Settings:
    """Checked hyperparameters.

    Prices are per million tokens, None where there is none; cached tokens of a prompt then cost what the others do.
    ``max_failures`` is the number of queries that may remain without an answer before the test case is given up.
    ``samples`` is how many answers are asked for, all but the first drawn with ``samples_temperature``.
    """

    model: str
    backend: str
    options: Mapping[str, Any]
    sampling: Sampling
    use_cache: bool = True
    price_prompt: float | None = None
    price_completion: float | None = None
    price_cached: float | None = None
    max_failures: int = 0
    samples: int = 1
    samples_temperature: float = 1.0

    @classmethod
    def parse(cls, hyperparameters: Mapping[str, Any], *, follows_edge: bool = False) -> Settings:
        """Raises UserError with the ``key`` at fault. ``follows_edge`` allows the back end ``same-as-edge``."""
        own = ("model", "backend", "use_cache", *PRICES, "max_failures", *_SAMPLES, *Sampling.names())
        for key in hyperparameters:
            if key not in own and key not in option_names():
                raise unknown("hyperparameter", key, (*own, *option_names()), key=key)
        check_no_secrets(hyperparameters)
        given = {key: value for key, value in hyperparameters.items() if value is not None}
        if isinstance(given.get("top_k"), Mapping):
            reason = "top_k is of how many tokens sampling draws one, a whole number; the breadth of EAGLE's tree is"
            raise UserError(f"{reason} eagle_topk", key="top_k")
        _check_types(given)
        if "model" not in given:
            raise UserError(
                "the hyperparameter model is missing: a folder in Hugging Face format, or a name", key="model"
            )
        try:
            sampling = Sampling(**{key: given[key] for key in Sampling.names() if key in given})
        except ValueError as error:
            raise UserError(str(error), key=str(error).partition(" ")[0]) from error
        settings = cls(
            model=given["model"],
            backend=resolve(given.get("backend", "autoregressive")),
            options={key: value for key, value in given.items() if key in option_names()},
            sampling=sampling,
            use_cache=given.get("use_cache", True),
            price_prompt=given.get("price_prompt"),
            price_completion=given.get("price_completion"),
            price_cached=given.get("price_cached"),
            max_failures=given.get("max_failures", 0),
            **{key: given[key] for key in _SAMPLES if key in given},
        )
        if not (follows_edge and settings.backend == SAME_AS_EDGE):
            settings.checked(settings.backend)
        return settings

    def checked(self, name: str) -> LLM:
        """The model behind the back end ``name``, not loaded; everything that depends on the back end is checked."""
        if backend(name, key="backend").local:
            check_model(self.model)
        llm = self.llm(name)
        llm.check(self.sampling)
        if self.samples > 1:
            llm.check(replace(self.sampling, temperature=float(self.samples_temperature)))
        return llm

    def check_files(self) -> None:
        """``LLM.check_files`` of the back end. For one that follows the edge's, of those that the options name."""
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
                # What only this back end needs is not there, and the edge may never have it.
                continue
            llm.check_files()

    def llm(self, name: str) -> LLM:
        """The model behind the back end ``name``, not loaded, with those of the options that are that back end's."""
        chosen = backend(name, key="backend")
        own = {key: _for_backend(key, value, name) for key, value in self.options.items()}
        return chosen(
            self.model, **{key: own[key] for key in chosen.option_names() if key in own and own[key] is not None}
        )

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float | None:
        """Price of one answer; None without a price. ``cached_tokens`` are some of ``prompt_tokens``."""
        prices = {name: getattr(self, name) for name in PRICES}
        return cost(prices, prompt_tokens, completion_tokens, cached_tokens)


def _for_backend(key: str, value: Any, name: str) -> Any:
    """The value of an option for the back end ``name``: an option may be a mapping from back ends to values.

    Where the value is itself a mapping, it is one from back ends only if all its keys are names of back ends, and what
    they lead to are mappings. Numbers are no such names: a length may be a mapping from them.
    """
    if not isinstance(value, Mapping) or (value and all(isinstance(known, int) for known in value)):
        return value
    values = {resolve(known): item for known, item in value.items()}
    whole = all(known in BACKENDS and (item is None or isinstance(item, Mapping)) for known, item in values.items())
    if key in mapping_names() and not whole:
        return value
    for known in values:
        if known not in BACKENDS:
            raise unknown(f"back end in {key}", str(known), BACKENDS, key=key)
    return values.get(resolve(name))


def _check_types(given: Mapping[str, Any]) -> None:
    def check(keys: tuple[str, ...], kinds: tuple[type, ...], what: str) -> None:
        for key in keys:
            value = given.get(key)
            if value is not None and (not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds)):
                raise UserError(f"{key} must be {what}, not {reprlib.repr(value)}", key=key)

    check(_NUMBERS, (int, float), "a number")
    check(_WHOLE, (int,), "a whole number")
    check(("model", "backend"), (str,), "a text")
    check(("use_cache", "logprobs", "ignore_eos"), (bool,), "true or false")
    stop = given.get("stop", ())
    if "\\\\n" in repr(stop):
        warn_once(f'stop: {stop!r} holds a backslash and a letter; in YAML a line break is "\\n", in double quotes')
    if not isinstance(stop, (str, list, tuple)) or not all(isinstance(item, str) for item in stop):
        raise UserError(f"stop must be a text or a list of texts, not {stop!r}", key="stop")
    for key in (*PRICES, "max_failures"):
        if not 0 <= given.get(key, 0) <= LARGEST_COUNT:
            reason = f"{key} must be 0 or more, at most {LARGEST_COUNT}, not {reprlib.repr(given[key])}"
            raise UserError(reason, key=key)
    if not 1 <= (samples := given.get("samples", 1)) <= MOST_SAMPLES:
        raise UserError(f"samples must be from 1 (the answer alone) to {MOST_SAMPLES}, not {samples!r}", key="samples")
    if not COLDEST <= (temperature := given.get("samples_temperature", 1.0)) <= HOTTEST:
        reason = f"samples_temperature must be from {COLDEST:g} (at 0 all samples would be alike) to {HOTTEST:g}"
        raise UserError(f"{reason}, not {reprlib.repr(temperature)}", key="samples_temperature")
