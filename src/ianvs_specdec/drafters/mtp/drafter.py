"""MTP: layers for multi-token prediction, trained with the model (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import MtpCache

from ianvs_specdec.drafters.hidden_states import HiddenStates, Pairs, features_of
from ianvs_specdec.drafters.mtp.files import load_mtp
from ianvs_specdec.drafters.probabilities import ChainDraft
from ianvs_specdec.engine import Context, Output, Target, TokenTree
from ianvs_specdec.targets.states import ReservedCache


class _Cache(ReservedCache, MtpCache):
    """Keys and values of all layers; those of layer k start at position k."""

    def close(self) -> None:
        self.layers.clear()


class MtpHead:
    """The MTP layers of ``target``'s checkpoint."""

    features = (-1,)

    def __init__(self, target: Target) -> None:
        self.model = load_mtp(target)
        self.depth = len(self.model.layers)
        self._target = target

    def open(self) -> _Cache:
        return _Cache()

    def memory(self, positions: int) -> int:
        return -(-self._target.memory(positions) // self._target.layers) * self.depth

    def layer(self, index: int, cache: _Cache, hidden: Tensor, tokens: Sequence[int], position: int) -> Tensor:
        """States ``[rows, hidden]`` of a layer after these pairs, the first of which is at ``position``."""
        ids = torch.tensor([tokens], device=hidden.device)
        positions = torch.arange(position, position + len(tokens), device=hidden.device)[None]
        states: Tensor = self.model.forward_layer(index, hidden[None], positions, cache, input_ids=ids)
        return states[0]


class Mtp(HiddenStates):
    """A chain of ``depth`` tokens, by default one per MTP layer; beyond, the last layer continues from its own state.

    Layer k reads pairs of the state of token i by layer k - 1 (the target for k = 1) and the token i + k, and predicts
    the token i + k + 1. The last pairs of all but the first layer contain guesses, and are recomputed once the tokens
    are known.
    """

    _head: MtpHead

    def __init__(self, depth: int | None = None) -> None:
        super().__init__()
        self._depth = depth

    def _load(self, target: Target) -> MtpHead:
        return MtpHead(target)

    def weights(self) -> Sequence[Any]:
        return [*self._head.model.layers.parameters()]

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        super().begin(target, context, prefill)
        self._kept = 0

    @torch.inference_mode()
    def propose(self, context: Context, budget: int) -> TokenTree:
        head = self._head
        depth = min(budget, self._depth or head.depth, context.remaining - 1)
        chain = ChainDraft(context, head.model.device, depth)
        if depth < 1:
            return chain.tree()
        pairs = self._pending.take()
        (hidden,), tokens = features_of([pairs]), list(pairs.tokens)
        position = self._kept + 1
        self._keep(pairs, hidden)
        for step in range(max(depth, head.depth)):
            if step >= head.depth:
                position, hidden, tokens = position + len(tokens) - 1, hidden[-1:], tokens[-1:]
            hidden = head.layer(min(step, head.depth - 1), self._sequence, hidden, tokens, position)
            tokens = [*tokens[1:], chain.add(head.model._project_to_logits(hidden[-1:]))]
            position += 1
        self._sequence.keep(self._kept)
        return chain.tree()

    def _keep(self, pairs: Pairs, hidden: Tensor) -> None:
        """Count the pairs as read, except those whose states depend on guesses: they are read again."""
        again = min(self._head.depth - 1, len(pairs.tokens))
        self._kept += len(pairs.tokens) - again
        if again:
            self._pending.add(Pairs(list(pairs.tokens)[-again:], [hidden[-again:].clone()]))
