"""MTP: layers for multi-token prediction, trained with the model (DeepSeek-V3, arXiv 2412.19437, section 2.2)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import MtpCache

from ianvs_specdec.drafters.eagle.steps import Pairs, Pending, features_of
from ianvs_specdec.drafters.mtp.files import load_mtp
from ianvs_specdec.drafters.probabilities import least_log, log_probabilities
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree
from ianvs_specdec.engine.sampling import Processor
from ianvs_specdec.targets.states import ReservedCache


class Mtp(Drafter):
    """A chain of ``depth`` tokens, one from each MTP layer unless set; beyond, the last layer goes on by itself.

    Layer k reads pairs of the state that layer k - 1 made of the token at i, the target for k = 1, and the token at
    i + k, and guesses the token at i + k + 1. The last pairs of all but the first layer are made of guesses, and are
    computed anew once the tokens are known.
    """

    def __init__(self, depth: int | None = None) -> None:
        self._given = depth
        self._target: Target | None = None
        self._cache: _Cache | None = None

    def prepare(self, target: Target) -> Sequence[int]:
        if target is not self._target:
            self._model = load_mtp(target)
            self._layers = len(self._model.layers)
            self._depth = self._given or self._layers
            self._target = target
        return (-1,)

    def fork(self) -> Mtp:
        another = copy.copy(self)
        another._cache = None
        return another

    @property
    def unread_tokens(self) -> int:
        return 0 if self._cache is None else len(self._pending)

    def weights(self) -> Sequence[Any]:
        return [*self._model.layers.parameters()]

    def memory(self, positions: int) -> int:
        """Keys and values, and the hidden states of all tokens, since it may never be asked."""
        if self._target is None:
            return 0
        states = self._model.config.hidden_size * self._target.dtype.itemsize * positions
        return states + -(-self._target.memory(positions) // self._target.layers) * self._layers

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._cache, self._kept, self._pending = _Cache(), 0, Pending()
        self._pending.add(Pairs(context.tokens[1:], prefill.hidden))

    def observe(self, observation: Observation) -> None:
        tokens, path = observation.tree.tokens, observation.path
        added = [*(tokens[node] for node in path[1:]), observation.token]
        self._pending.add(Pairs(added, observation.output.hidden, path))

    def end(self) -> None:
        self._cache = None

    @torch.inference_mode()
    def propose(self, context: Context, budget: int) -> TokenTree:
        depth = min(budget, self._depth, context.remaining - 1)
        chain = _Chain(context, self._model.device, depth)
        if depth < 1:
            return chain.tree()
        pairs = self._pending.take()
        (hidden,), tokens = features_of([pairs]), list(pairs.tokens)
        place = self._kept + 1
        self._keep(pairs, hidden)
        for step in range(max(depth, self._layers)):
            layer = min(step, self._layers - 1)
            if step >= self._layers:
                place, hidden, tokens = place + len(tokens) - 1, hidden[-1:], tokens[-1:]
            hidden = self._layer(layer, hidden, tokens, place)
            tokens = [*tokens[1:], chain.add(self._model._project_to_logits(hidden[-1:]))]
            place += 1
        assert self._cache is not None
        self._cache.keep(self._kept)
        return chain.tree()

    def _keep(self, pairs: Pairs, hidden: Tensor) -> None:
        """Of the pairs from ``_kept`` on, those are read again next time whose states depend on guesses."""
        again = min(self._layers - 1, len(pairs.tokens))
        self._kept += len(pairs.tokens) - again
        if again:
            self._pending.add(Pairs(list(pairs.tokens)[-again:], [hidden[-again:].clone()]))

    def _layer(self, layer: int, hidden: Tensor, tokens: Sequence[int], place: int) -> Tensor:
        """States ``[rows, hidden]`` of a layer after these pairs, the first of which is at position ``place``."""
        ids = torch.tensor([tokens], device=hidden.device)
        positions = torch.arange(place, place + len(tokens), device=hidden.device)[None]
        states: Tensor = self._model.forward_layer(layer, hidden[None], positions, self._cache, input_ids=ids)
        return states[0]


class _Cache(ReservedCache, MtpCache):
    """Keys and values of all layers, of which the k-th begins at position k."""


class _Chain:
    """A chain of at most ``depth`` guesses in the making."""

    def __init__(self, context: Context, device: torch.device, depth: int) -> None:
        self._context, self._depth = context, depth
        self._processor = Processor(context.sampling, context.tokens, device)
        self._tokens: list[int] = []
        self._drawn_from: dict[int, Tensor] = {}
        self._chance, self._ended = 0.0, False

    def add(self, logits: Tensor) -> int:
        """The next guess by ``logits [1, vocabulary]``, which is part of the chain while that is neither long enough
        nor too unsure."""
        context, node = self._context, len(self._tokens)
        scores = log_probabilities(context, self._processor, logits, [len(context.tokens) + node])[0]
        best, token = scores.max(dim=-1)
        self._chance += float(best)
        self._ended = self._ended or node == self._depth or self._chance < least_log(context)
        if not context.sampling.greedy and context.noise is None:
            q = scores.exp()
            token = torch.multinomial(q, 1, generator=context.generator)[0]
            if not self._ended:
                self._drawn_from[node] = q
        if not self._ended:
            self._tokens.append(int(token))
            self._processor.extend(int(token))
        return int(token)

    def tree(self) -> TokenTree:
        return TokenTree.chain(self._context.tokens[-1], self._tokens, self._drawn_from or None)
