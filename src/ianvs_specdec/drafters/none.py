"""No drafts: plain autoregressive decoding."""

from __future__ import annotations

from ianvs_specdec.decoding import Context, Observation, Output, Target, TokenTree


class NoDraft:
    features: tuple[int, ...] = ()

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        pass

    def propose(self, context: Context, budget: int) -> TokenTree:
        return TokenTree.chain(context.tokens[-1])

    def observe(self, observation: Observation) -> None:
        pass
