"""How an answer is asked for."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any

COLDEST, HOTTEST = 1e-6, 1e6
LEAST_PENALTY, LARGEST_PENALTY = 1e-3, 1e3
"""What logits are divided by: far beyond these, float32 has no numbers for what comes of it."""
LARGEST_COUNT = (1 << 31) - 1
SEEDS = range(-(1 << 63), 1 << 64)
"""What torch takes."""
RESERVED = {
    *("messages", "conversations", "chat_template", "tools", "add_generation_prompt", "tokenize"),
    *("continue_final_message", "return_assistant_tokens_mask"),
}
"""What ``chat_template_kwargs`` may not hold."""
_NEWER = ("logprobs", "min_tokens", "ignore_eos", "chat_template_kwargs", "template_time")


@dataclass(frozen=True)
class Sampling:
    """How a chat becomes a prompt, how tokens are chosen and when generation ends.

    ``temperature`` 0 is greedy decoding; what is colder than ``COLDEST`` is refused. ``top_p``, ``top_k`` (0 = off)
    and ``repetition_penalty`` have the meaning and the order of application they have in transformers. ``stop`` strings
    end the output and are not part of it. Tokens that end it are none of its first ``min_tokens``, and with
    ``ignore_eos`` they are tokens like all others. ``chat_template_kwargs`` are variables of the model's chat template,
    ``template_time`` (ISO 8601) is what its clock shows; "" leaves that to who renders it.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict, hash=False)
    template_time: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        # YAML makes dates of dates.
        object.__setattr__(self, "template_time", time := str(self.template_time))
        warm, penal, given = self.temperature, self.repetition_penalty, self.chat_template_kwargs
        # Keys that are no texts, and values that JSON does not have, come back as others or not at all.
        plain = _holds(lambda: json.loads(json.dumps(given, allow_nan=False)) == given) and isinstance(given, dict)
        warmth = f"0 (greedy) or more, from {COLDEST} to {HOTTEST}"
        for name, ok, rule in (
            ("max_tokens", 1 <= self.max_tokens <= LARGEST_COUNT, f"at least 1 and at most {LARGEST_COUNT}"),
            ("temperature", warm == 0 or COLDEST <= warm <= HOTTEST, warmth),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", 0 <= self.top_k <= LARGEST_COUNT, f"0 (off) or at most {LARGEST_COUNT}"),
            (
                "repetition_penalty",
                LEAST_PENALTY <= penal <= LARGEST_PENALTY,
                f"from {LEAST_PENALTY} to {LARGEST_PENALTY}",
            ),
            ("seed", self.seed in SEEDS, "a number of 64 bits"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, f"from 0 to max_tokens ({self.max_tokens})"),
            (
                "chat_template_kwargs",
                plain and not RESERVED & given.keys(),
                f"JSON by name, without {sorted(RESERVED)}",
            ),
            ("template_time", not time or _holds(lambda: datetime.fromisoformat(time)), "as 2026-11-28T09:00"),
        ):
            if not ok:
                raise ValueError(f"{name} must be {rule}, got {reprlib.repr(getattr(self, name))}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))

    def to_json(self) -> dict[str, Any]:
        """What determines an answer. Where ``logprobs`` or a later field is not used, as if there were none: answers of
        journals that do not know it still serve.
        """
        plain = {**vars(self), "stop": list(self.stop)}
        return {name: value for name, value in plain.items() if value or name not in _NEWER}

    def first(self, tokens: int) -> Sampling:
        """The same for an answer of at most so many tokens."""
        most = min(tokens, self.max_tokens)
        return replace(self, max_tokens=most, min_tokens=min(most, self.min_tokens))

    def after(self, tokens: int) -> Sampling:
        """The same for what follows the first ``tokens`` tokens of an answer."""
        return replace(self, max_tokens=self.max_tokens - tokens, min_tokens=max(0, self.min_tokens - tokens))


def _holds(check: Callable[[], Any]) -> bool:
    try:
        return bool(check())
    except (TypeError, ValueError, RecursionError):
        return False
