"""Lookahead decoding of the authors (Fu et al. 2024; the package lade 0.0.2), step by step the same."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree

SEED = 10
"""Seed of the random start in the published code, used on every call."""

Ngram = tuple[int, tuple[int, ...]]
"""A token and the tokens after it."""


class Window:
    """Jacobi trajectories of ``width`` neighbouring positions ahead of the root.

    Row 0 starts as ``width + level - 3`` arbitrary tokens for the positions after the root. Row r + 1 has the target's
    tokens after row r, one position further; every step adds one row. With ``level - 1`` rows the window is full:
    column j is an n-gram of ``level`` tokens, from the root or a token of row 0 to the target's token after the last
    row. From then on each step replaces row 0 by the new row. The window slides by one position per step.
    """

    def __init__(self, level: int, first_row: Sequence[int]) -> None:
        self._level = level
        self._root = -1
        self.rows: list[list[int]] = [list(first_row)]

    @property
    def full(self) -> bool:
        return len(self.rows) == self._level - 1

    def hang(self, tokens: list[int], parents: list[int]) -> list[int]:
        """Append the window to a tree given by its ``tokens`` and ``parents``, root first.

        Row 0 is a chain below the root; each later row continues the row above, column by column, with the root as
        column 0 of row 0. Returns the nodes after which the target gives the next row.
        """
        self._root = tokens[0]
        above = [0]
        for token in self.rows[0]:
            parents.append(above[-1])
            above.append(len(tokens))
            tokens.append(token)
        for row in self.rows[1:]:
            parents += above[: len(row)]
            above = list(range(len(tokens), len(tokens) + len(row)))
            tokens += row
        return above

    def advance(self, following: Sequence[int]) -> list[Ngram]:
        """Take the target's tokens after the nodes that ``hang`` returned. Returns the completed n-grams."""
        if not self.full:
            self.rows = [*(row[1:] for row in self.rows), list(following[1:])]
            return []
        heads = [self._root, *self.rows[0]]
        tails = zip(*self.rows[1:], following, strict=True)
        self.rows = [*self.rows[1:], list(following)]
        self.rows[0] = self.rows[0][1:]
        return list(zip(heads, tails, strict=True))

    def noted(self) -> list[list[int] | None]:
        """The rows for a trace; None for missing ones."""
        return [*map(list, self.rows), *([None] * (self._level - 1 - len(self.rows)))]


class Pool:
    """The latest ``size`` n-grams by their first token; repeated ones count as the latest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._tails: dict[int, dict[tuple[int, ...], None]] = {}

    def add(self, ngrams: Iterable[Ngram]) -> None:
        for head, tail in ngrams:
            tails = self._tails.setdefault(head, {})
            tails.pop(tail, None)
            tails[tail] = None
            if len(tails) > self._size:
                del tails[next(iter(tails))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        return list(self._tails.get(token, ()))


class OfficialLookahead(Drafter):
    """A window of ``level - 1`` rows of ``window`` tokens generates n-grams; up to ``guess`` of those that begin with
    the root are verified in the same step.

    The window starts as random tokens of the prompt and slides by one position per step. At most ``level - 2`` of the
    ``level - 1`` tokens of a guess are accepted, so that many are verified. Guesses with a common beginning share
    nodes, which changes no output; a small budget is spent on the latest.

    ``notes`` of a tree: ``ctx``, the number of tokens up to the root; ``window``, the rows; ``guess``, the guesses in
    full, one after another, None if there is none.
    """

    roots_in_prompt = True

    def __init__(self, level: int, window: int, guess: int) -> None:
        self._level, self._width, self._guess = level, window, guess

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        prompt = context.tokens[: context.prompt_tokens]
        draw = random.Random(SEED)
        self._window = Window(self._level, [draw.choice(prompt) for _ in range(self._width + self._level - 3)])
        self._pool = Pool(self._guess)
        self._tree: TokenTree | None = None

    def propose(self, context: Context, budget: int) -> TokenTree:
        root = context.tokens[-1]
        tokens, parents = [root], [-1]
        guesses = self._pool.after(root)
        nodes: dict[tuple[int, int], int] = {}
        for guess in reversed(guesses):
            node = 0
            for token in guess[: min(self._level - 2, context.remaining - 1)]:
                if (node, token) not in nodes:
                    if len(tokens) > budget:
                        break
                    nodes[node, token] = len(tokens)
                    tokens.append(token)
                    parents.append(node)
                node = nodes[node, token]
        notes = {
            "ctx": len(context.tokens),
            "window": self._window.noted(),
            "guess": [token for guess in guesses for token in guess] or None,
        }
        first_scout = len(tokens)
        self._row_nodes = self._window.hang(tokens, parents)
        self._tree = TokenTree(tokens, parents, scouts=frozenset(range(first_scout, len(tokens))), notes=notes)
        return self._tree

    def observe(self, observation: Observation) -> None:
        # Steps without drafts or with a truncated tree do not advance the window.
        if observation.tree is self._tree:
            following = observation.output.logits[self._row_nodes].argmax(dim=-1).tolist()
            self._pool.add(self._window.advance(following))
