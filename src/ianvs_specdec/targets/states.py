"""The state a Hugging Face model keeps of a sequence, and how it is taken back by some tokens."""

from __future__ import annotations

import copy
from typing import Any


class KeyValues:
    """State of a model that keeps keys and values for every position: taken back by dropping positions."""

    def __init__(self) -> None:
        from ianvs_specdec.targets.cache import ReservedCache

        self.cache = ReservedCache()

    def clear(self) -> None:
        self.cache.keep(0)

    def before(self, tokens: list[int]) -> tuple[list[int], dict[str, Any]]:
        """What the model has to be given to go on with ``tokens``: token ids and further inputs."""
        return tokens, {"past_key_values": self.cache}

    def after(self, tokens: list[int], out: Any) -> None:
        """The model computed ``tokens`` and returned ``out``. (The cache was updated in place.)"""

    def snapshot(self) -> int:
        return self.cache.get_seq_length()

    def restore(self, snapshot: int) -> None:
        self.cache.keep(snapshot)


class Recurrent:
    """State of any other model: what it returned is handed back to it, and kept as a copy where it may be needed again.

    A model that returns no state is given the whole sequence every time.
    """

    NAMES = ("past_key_values", "cache_params", "state")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._held: dict[str, Any] = {}
        self._tokens: list[int] = []

    def before(self, tokens: list[int]) -> tuple[list[int], dict[str, Any]]:
        """As ``KeyValues.before``."""
        return tokens if self._held else [*self._tokens, *tokens], self._held

    def after(self, tokens: list[int], out: Any) -> None:
        """As ``KeyValues.after``."""
        self._tokens += tokens
        self._held = {name: out[name] for name in self.NAMES if out.get(name) is not None}

    def snapshot(self) -> Any:
        return copy.deepcopy((self._held, self._tokens))

    def restore(self, snapshot: Any) -> None:
        self._held, self._tokens = snapshot


def state_of(model: Any) -> KeyValues | Recurrent:
    """An empty state of the kind that ``model``, a ``transformers`` causal LM, keeps."""
    from ianvs_specdec.targets.cache import keeps_every_position

    drops_positions = not model._is_stateful and model._supports_default_dynamic_cache()
    return KeyValues() if drops_positions and keeps_every_position(model.config.get_text_config()) else Recurrent()


def reset_rotations(model: Any) -> None:
    """Have rotations that grow with a sequence begin anew: transformers leaves them as the longest one so far had
    them."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.inv_freq, module.max_seq_len_cached = module.original_inv_freq, module.original_max_seq_len
