"""Sampling parameters of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field, fields, replace
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from ianvs_specdec.common.settings import STRICT, described_as, validator

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 1e6
MIN_PENALTY, MAX_PENALTY = 1e-3, 1e3
"""Divisors of logits: far beyond these bounds the results overflow float32."""
MAX_COUNT = (1 << 31) - 1
SEEDS = range(-(1 << 63), 1 << 64)
"""Seeds that torch accepts."""
RESERVED = {
    *("messages", "conversations", "chat_template", "tools", "add_generation_prompt", "tokenize"),
    *("continue_final_message", "return_assistant_tokens_mask"),
}
"""Names that are invalid in ``chat_template_kwargs``."""
_NEWER = ("logprobs", "min_tokens", "ignore_eos", "chat_template_kwargs", "template_time")


def _warm(value: float) -> None:
    if value and not MIN_TEMPERATURE <= value <= MAX_TEMPERATURE:
        bounds = f"from {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}"
        raise ValueError(f"must be 0 (greedy) or a number {bounds}, not {value!r}")


def _plain(value: dict[str, Any]) -> None:
    # Other keys than strings, and values that JSON does not have, change in a round trip or fail.
    try:
        plain = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        plain = False
    if not plain or RESERVED & value.keys():
        raise ValueError(f"must be JSON by name, without {sorted(RESERVED)}")


def _time(value: str) -> None:
    try:
        datetime.fromisoformat(value or "2026-11-28")
    except ValueError:
        raise ValueError(f"must be a time such as 2026-11-28T09:00, not {value!r}") from None


def _texts(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else value


Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Temperature = Annotated[float, validator(_warm), described_as("0 (greedy) or a number from 1e-06 to 1e+06")]
Stop = Annotated[
    tuple[str, ...],
    BeforeValidator(_texts, json_schema_input_type=str | list[str]),
    described_as("a text or a list of texts"),
]


@dataclass(frozen=True, config=STRICT)
class Sampling:
    """How a chat becomes a prompt, how tokens are chosen and when generation ends.

    ``top_p``, ``top_k`` and ``repetition_penalty`` are defined and applied in the same order as in transformers. The
    output ends before a ``stop`` string. EOS tokens are suppressed in the first ``min_tokens`` tokens; with
    ``ignore_eos`` they do not end the output.
    """

    max_tokens: Annotated[int, Field(ge=1, le=MAX_COUNT, description="the most tokens of an answer")] = 512
    temperature: Annotated[Temperature, Field(description="0 decodes greedily")] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1, description="the probability mass that is sampled from")] = 1.0
    top_k: Annotated[Count, Field(description="how many tokens are sampled from; 0 = all")] = 0
    repetition_penalty: Annotated[
        float, Field(ge=MIN_PENALTY, le=MAX_PENALTY, description="above 1, tokens do not repeat as often")
    ] = 1.0
    seed: Annotated[int, Field(ge=SEEDS[0], le=SEEDS[-1], description="of the random numbers")] = 0
    stop: Annotated[Stop, Field(description="texts that end an answer")] = ()
    logprobs: Annotated[bool, Field(description="record how sure the model is of each token")] = False
    min_tokens: Annotated[Count, Field(description="the least tokens of an answer")] = 0
    ignore_eos: Annotated[bool, Field(description="go on after the end of the sequence")] = False
    chat_template_kwargs: Annotated[
        dict[str, Any], validator(_plain), Field(description="variables of the model's chat template")
    ] = field(default_factory=dict, hash=False)
    template_time: Annotated[
        # YAML makes dates of dates.
        str,
        BeforeValidator(str),
        validator(_time),
        Field(description="the time that the chat template reads (ISO 8601)"),
    ] = ""

    @model_validator(mode="after")
    def _least_fits(self) -> Self:
        if self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens must be from 0 to max_tokens ({self.max_tokens}), not {self.min_tokens}")
        return self

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))

    def to_json(self) -> dict[str, Any]:
        """The parameters that determine an answer. Unused newer fields are omitted, so that answers in older journals
        remain valid."""
        plain = {**vars(self), "stop": list(self.stop)}
        return {name: value for name, value in plain.items() if value or name not in _NEWER}

    def first(self, tokens: int) -> Sampling:
        """These parameters for at most ``tokens`` tokens."""
        most = min(tokens, self.max_tokens)
        return replace(self, max_tokens=most, min_tokens=min(most, self.min_tokens))

    def after(self, tokens: int) -> Sampling:
        """These parameters for the continuation after the first ``tokens`` tokens of an answer."""
        return replace(self, max_tokens=self.max_tokens - tokens, min_tokens=max(0, self.min_tokens - tokens))
