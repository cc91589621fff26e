"""The state a Hugging Face model keeps of a sequence, and how it is taken back by some tokens: keys and values in a
cache that is rolled back without copying, or whatever else the model returns."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

_FIRST_CAPACITY = 256


def max_capacity(positions: int) -> int:
    """The most positions that a layer reserves for a sequence of ``positions``."""
    return max(_FIRST_CAPACITY, 2 * positions)


class ReservedLayer(DynamicLayer):
    """Keys and values ``[1, heads, capacity, head_dim]`` of which the first ``length`` positions count.

    The layer of ``DynamicCache`` concatenates, which copies the whole cache for every new token.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.is_initialized = True
        self.keys = _room_like(key_states, _FIRST_CAPACITY)
        self.values = _room_like(value_states, _FIRST_CAPACITY)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[-2]
        if end > self.keys.shape[-2]:
            self.keys = _grown(self.keys, start, 2 * end)
            self.values = _grown(self.values, start, 2 * end)
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_seq_length(self) -> int:
        return self.length

    def keep(self, start: int, rows: Sequence[int]) -> None:
        """Of the positions from ``start`` on keep those at the ascending offsets ``rows``."""
        end = start + len(rows)
        if rows and rows[-1] != len(rows) - 1:
            index = torch.tensor(rows, device=self.keys.device) + start
            self.keys[:, :, start:end] = self.keys.index_select(2, index)
            self.values[:, :, start:end] = self.values.index_select(2, index)
        self.length = end


class ReservedCache(DynamicCache):
    """A ``DynamicCache`` of ``ReservedLayer``. Sliding-window layers are kept whole; the mask hides what is out of
    reach."""

    def __init__(self) -> None:
        super().__init__()
        self.layer_class_to_replicate = ReservedLayer

    def keep(self, start: int, rows: Sequence[int] = ()) -> None:
        """Of the positions from ``start`` on keep those at the ascending offsets ``rows``, in every layer."""
        for layer in self.layers:
            if isinstance(layer, ReservedLayer) and layer.is_initialized:
                layer.keep(start, rows)


class KeyValues:
    """State of a model that keeps keys and values for every position: taken back by dropping positions."""

    def __init__(self) -> None:
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
        return tokens if self._held else [*self._tokens, *tokens], self._held

    def after(self, tokens: list[int], out: Any) -> None:
        self._tokens += tokens
        self._held = {name: out[name] for name in self.NAMES if out.get(name) is not None}

    def snapshot(self) -> Any:
        return copy.deepcopy((self._held, self._tokens))

    def restore(self, snapshot: Any) -> None:
        self._held, self._tokens = snapshot


def state_of(model: Any) -> KeyValues | Recurrent:
    """An empty state of the kind that ``model``, a ``transformers`` causal LM, keeps."""
    drops_positions = not model._is_stateful and model._supports_default_dynamic_cache()
    return KeyValues() if drops_positions and keeps_every_position(model.config.get_text_config()) else Recurrent()


def reset_rotations(model: Any) -> None:
    """Have rotations that grow with a sequence begin anew: transformers leaves them as the longest one so far had
    them."""
    for module in model.modules():
        if getattr(module, "rope_type", None) == "dynamic":
            module.inv_freq, module.max_seq_len_cached = module.original_inv_freq, module.original_max_seq_len


def keeps_every_position(config: Any) -> bool:
    """Whether all state of a model with this configuration is keys and values per position (no recurrent state)."""
    layers = DynamicCache(config=config).layers
    return all(type(layer).__name__ in {"DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer"} for layer in layers)


def _room_like(states: Tensor, positions: int) -> Tensor:
    return states.new_empty((*states.shape[:-2], positions, states.shape[-1]))


def _grown(states: Tensor, length: int, positions: int) -> Tensor:
    larger = _room_like(states, positions)
    larger[:, :, :length] = states[:, :, :length]
    return larger
