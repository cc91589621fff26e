"""Lookahead decoding: drafts made of what the target itself says on the side (Fu et al. 2024).

``start=official`` is the published algorithm (see ``official``). ``start=prompt``, the default, is what we
made of it: everything that the target computes is remembered, and little is computed to be remembered only.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush

from ianvs_specdec.drafters.lookahead.official import SEED, OfficialLookahead
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree

DEFAULTS = {"official": (5, 7, 7), "prompt": (5, 4, 2)}
"""Start -> level, window, guess. Ours is small because on a CPU every token of a step costs; where steps of many tokens
are cheap, larger ones accept more."""


def lookahead(
    level: int | None = None, window: int | None = None, guess: int | None = None, start: str = "prompt"
) -> Drafter:
    """The drafter for a ``start``; what is None comes from ``DEFAULTS``.

    Raises ``UserError`` for a ``level`` below 2.
    """
    defaults = DEFAULTS[start]
    drafter = OfficialLookahead if start == "official" else Lookahead
    return drafter(level or defaults[0], window or defaults[1], guess or defaults[2])


class Lookahead(Drafter):
    """Guesses and a window in one tree, of which every node can be accepted.

    The window is a single row of ``window`` tokens. It begins as random tokens of the prompt; what the target says
    after each of them is the next row: plain Jacobi iteration (Santilli et al. 2023). More rows would find better
    n-grams, but compute each of their tokens several times. A pool holds what followed every token and every pair of
    tokens: in the text, in the row, and after guesses that were not accepted (as in token recycling, Luo et al. 2024).
    Guesses of up to ``level - 1`` tokens are chained together from it, the likeliest first, until they have
    ``guess * (level - 1)`` tokens. The row continues the likeliest guess: if that is right, what the target says after
    the row is about the text to come.

    A budget below the two together shortens the row first. ``context.confidence`` limits the guesses, not the row.
    """

    def __init__(self, level: int, window: int, guess: int) -> None:
        self._depth, self._width, self._guesses = level - 1, window, guess * (level - 1)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._context = context
        self._pool = _Followers()
        self._read = 1
        draw = random.Random(SEED)
        self._row = draw.choices(context.tokens[: context.prompt_tokens], k=self._width)
        self._speakers: list[int] = []
        self._tree: TokenTree | None = None

    @property
    def unread_tokens(self) -> int:
        return len(self._context.tokens) - self._read

    def propose(self, context: Context, budget: int) -> TokenTree:
        self._read_on()
        draft = _Draft(context.tokens[-2:])
        if context.remaining > 1:
            depth = min(self._depth, context.remaining - 1)
            self._speakers = [self._guess(draft, min(self._guesses, budget), depth, context.confidence)]
            for token in self._row:
                if len(draft.tokens) > budget:
                    break
                self._speakers.append(draft.add(self._speakers[-1], token))
        self._tree = TokenTree(draft.tokens, draft.parents)
        return self._tree

    def observe(self, observation: Observation) -> None:
        tree = observation.tree
        # What was computed without this drafter's tree, or with a part of it, is not what the row waits for.
        if tree is not self._tree or len(tree) == 1:
            return
        self._read_on()
        said = observation.output.logits.argmax(dim=-1).tolist()
        accepted = set(observation.path)
        for node in range(1, len(tree)):
            if node not in accepted:
                self._pool.note(tree.tokens[tree.parents[node]], tree.tokens[node], said[node], by_target=True)
        spoken = len(self._speakers) - 1
        self._row = [*(said[node] for node in self._speakers[1:]), *self._row[spoken:]]

    def _guess(self, draft: _Draft, limit: int, depth: int, confidence: float) -> int:
        """Add the ``limit`` likeliest tokens, at most ``depth`` deep. Returns the end of the likeliest guess."""
        waiting: list[tuple[float, int, int]] = []
        self._await_followers(waiting, draft, 0, 1.0, confidence)
        end = 0
        while waiting and len(draft.tokens) <= limit:
            chance, parent, token = heappop(waiting)
            node = draft.add(parent, token)
            end = node if parent == end else end
            if draft.depths[node] < depth:
                self._await_followers(waiting, draft, node, -chance, confidence)
        return end

    def _await_followers(
        self, waiting: list[tuple[float, int, int]], draft: _Draft, node: int, chance: float, confidence: float
    ) -> None:
        for token, rate in self._pool.after(draft.before(node), draft.tokens[node]).items():
            if chance * rate >= confidence:
                heappush(waiting, (-chance * rate, node, token))

    def _read_on(self) -> None:
        tokens = self._context.tokens
        for i in range(self._read, len(tokens)):
            self._pool.note(tokens[i - 2] if i > 1 else _NOTHING, tokens[i - 1], tokens[i], by_target=False)
        self._read = len(tokens)


_NOTHING = -1
"""What stands before the first token of a text."""


class _Draft:
    """A tree under construction below the last of ``ending``, the last one or two tokens of the text."""

    def __init__(self, ending: list[int]) -> None:
        self.tokens = ending[-1:]
        self.parents = [-1]
        self.depths = [0]
        self._before_root = ending[0] if len(ending) > 1 else _NOTHING
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token: int) -> int:
        """The child of ``parent`` that is ``token``, made if there is none."""
        node = self._nodes.get((parent, token))
        if node is None:
            node = self._nodes[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
        return node

    def before(self, node: int) -> int:
        return self.tokens[self.parents[node]] if node else self._before_root


class _Followers:
    """What followed tokens and pairs of tokens, with the rate at which it can be expected to follow again.

    A follower that is seen again counts as the latest; only the latest few are kept.
    """

    # How often a follower was right, the latest first, as counted with the shipped cloud model: what followed in the
    # text, and what the target said.
    _AFTER_TOKEN = (0.26, 0.1, 0.05, 0.02), (0.55, 0.17, 0.06, 0.03)
    _AFTER_PAIR = (0.4, 0.2, 0.1, 0.1), (0.67, 0.2, 0.1, 0.05)

    def __init__(self) -> None:
        self._after_token: dict[int, dict[int, bool]] = {}
        self._after_pair: dict[tuple[int, int], dict[int, bool]] = {}

    def note(self, before: int, token: int, follower: int, by_target: bool) -> None:
        for followers in (self._after_token.setdefault(token, {}), self._after_pair.setdefault((before, token), {})):
            followers.pop(follower, None)
            followers[follower] = by_target
            if len(followers) > len(self._AFTER_TOKEN[0]):
                del followers[next(iter(followers))]

    def after(self, before: int, token: int) -> dict[int, float]:
        """Follower -> rate."""
        found: dict[int, float] = {}
        for rates, followers in (
            (self._AFTER_TOKEN, self._after_token.get(token, {})),
            (self._AFTER_PAIR, self._after_pair.get((before, token), {})),
        ):
            for age, (follower, by_target) in enumerate(reversed(followers.items())):
                found[follower] = max(rates[by_target][age], found.get(follower, 0.0))
        return found
