"""Autoregressive decoding: no drafts, one token per step."""

from __future__ import annotations

from ianvs_specdec.engine import Context, Drafter, TokenTree


class Autoregressive(Drafter):
    def propose(self, context: Context, budget: int) -> TokenTree:
        return TokenTree.chain(context.tokens[-1])
