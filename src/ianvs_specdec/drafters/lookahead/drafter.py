"""Lookahead decoding: drafts from n-grams that the target generates on the side (Fu et al. 2024).

``start=official`` is the published algorithm (see ``official``). The default ``start=prompt`` is our variant: it
remembers everything that the target computes, and computes few tokens only for that purpose.
"""

from __future__ import annotations

import random
from heapq import heappop, heappush

from ianvs_specdec.drafters.lookahead.official import SEED, OfficialLookahead
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree

DEFAULTS = {"official": (5, 7, 7), "prompt": (5, 4, 2)}
"""Start -> level, window, guess. Ours are small because on a CPU every token of a step costs; where large steps are
cheap, larger values accept more."""


def lookahead(
    level: int | None = None, window: int | None = None, guess: int | None = None, start: str = "prompt"
) -> Drafter:
    """The drafter for a ``start``; None means the values of ``DEFAULTS``."""
    defaults = DEFAULTS[start]
    drafter = OfficialLookahead if start == "official" else Lookahead
    return drafter(level or defaults[0], window or defaults[1], guess or defaults[2])


class Lookahead(Drafter):
    """Guesses and a window in one tree, all of whose nodes can be accepted.

    The window is one row of ``window`` tokens, initially random tokens of the prompt; the target's tokens after them
    are the next row: plain Jacobi iteration (Santilli et al. 2023). More rows would find better n-grams, but compute
    each token several times. A pool holds what followed every token and every pair of tokens: in the text, in the row,
    and after rejected guesses (as in token recycling, Luo et al. 2024). Guesses of up to ``level - 1`` tokens are built
    from it, the likeliest first, until they have ``guess * (level - 1)`` tokens. The row continues the likeliest guess:
    if that is right, the row's results are about the text to come.

    A smaller budget shortens the row first. ``context.confidence`` limits the guesses, not the row.
    """

    def __init__(self, level: int, window: int, guess: int) -> None:
        self._depth, self._width, self._guesses = level - 1, window, guess * (level - 1)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        self._context = context
        self._pool = _Followers()
        self._read = 1
        draw = random.Random(SEED)
        self._row = draw.choices(context.tokens[: context.prompt_tokens], k=self._width)
        self._row_nodes: list[int] = []
        self._tree: TokenTree | None = None

    @property
    def unread_tokens(self) -> int:
        return len(self._context.tokens) - self._read

    def propose(self, context: Context, budget: int) -> TokenTree:
        self._index()
        draft = _Draft(context.tokens[-2:])
        if context.remaining > 1:
            depth = min(self._depth, context.remaining - 1)
            self._row_nodes = [self._guess(draft, min(self._guesses, budget), depth, context.confidence)]
            for token in self._row:
                if len(draft.tokens) > budget:
                    break
                self._row_nodes.append(draft.add(self._row_nodes[-1], token))
        self._tree = TokenTree(draft.tokens, draft.parents)
        return self._tree

    def observe(self, observation: Observation) -> None:
        tree = observation.tree
        # Steps without this drafter's whole tree do not advance the row.
        if tree is not self._tree or len(tree) == 1:
            return
        self._index()
        following = observation.output.logits.argmax(dim=-1).tolist()
        accepted = set(observation.path)
        for node in range(1, len(tree)):
            if node not in accepted:
                self._pool.note(tree.tokens[tree.parents[node]], tree.tokens[node], following[node], by_target=True)
        count = len(self._row_nodes) - 1
        self._row = [*(following[node] for node in self._row_nodes[1:]), *self._row[count:]]

    def _guess(self, draft: _Draft, limit: int, depth: int, confidence: float) -> int:
        """Add the ``limit`` likeliest tokens, at most ``depth`` deep. Returns the end of the likeliest guess."""
        frontier: list[tuple[float, int, int]] = []
        self._push_followers(frontier, draft, 0, 1.0, confidence)
        end = 0
        while frontier and len(draft.tokens) <= limit:
            probability, parent, token = heappop(frontier)
            node = draft.add(parent, token)
            end = node if parent == end else end
            if draft.depths[node] < depth:
                self._push_followers(frontier, draft, node, -probability, confidence)
        return end

    def _push_followers(
        self, frontier: list[tuple[float, int, int]], draft: _Draft, node: int, probability: float, confidence: float
    ) -> None:
        for token, rate in self._pool.after(draft.before(node), draft.tokens[node]).items():
            if probability * rate >= confidence:
                heappush(frontier, (-probability * rate, node, token))

    def _index(self) -> None:
        tokens = self._context.tokens
        for i in range(self._read, len(tokens)):
            self._pool.note(tokens[i - 2] if i > 1 else _NOTHING, tokens[i - 1], tokens[i], by_target=False)
        self._read = len(tokens)


_NOTHING = -1
"""Placeholder before the first token of a text."""


class _Draft:
    """A growing tree below the last of ``ending``, the last one or two tokens of the text."""

    def __init__(self, ending: list[int]) -> None:
        self.tokens = ending[-1:]
        self.parents = [-1]
        self.depths = [0]
        self._before_root = ending[0] if len(ending) > 1 else _NOTHING
        self._nodes: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token: int) -> int:
        """The child of ``parent`` with ``token``, created if missing."""
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
    """What followed tokens and pairs of tokens, with estimated probabilities.

    Repeated followers count as the latest; only the latest few are kept.
    """

    # Hit rates of followers, the latest first, with the shipped cloud model: followers in the text, and the target's.
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
        """Follower -> probability."""
        found: dict[int, float] = {}
        for rates, followers in (
            (self._AFTER_TOKEN, self._after_token.get(token, {})),
            (self._AFTER_PAIR, self._after_pair.get((before, token), {})),
        ):
            for age, (follower, by_target) in enumerate(reversed(followers.items())):
                found[follower] = max(rates[by_target][age], found.get(follower, 0.0))
        return found
