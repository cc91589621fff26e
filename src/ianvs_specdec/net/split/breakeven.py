"""How fast an edge and a verifier decode together, and up to which round trip that beats streaming.

Times are in seconds. A draft has k tokens (``length``), each right with probability a (``acceptance``) where those
before it are. R is the round trip (``way``), S one step of the verifier (``service``), d what drafting a token takes
(``draft``).

A round brings e = 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens: what was accepted, and the one that the target
puts behind it.

Without drafting ahead a round is k d + R + S: draft, send, have verified, hear.

With it the edge goes on drafting behind what it sent, as if all of that were right and the token behind it as guessed.
That is so with probability h = a^(k+1). Then the next k + 1 tokens were drafted meanwhile, so that verdicts follow each
other as fast as the slowest of three: drafting, (k + 1) d; the verifier, S; the way, on which at most n drafts are at
a time, (R + S) / n. Else the edge begins anew, once it has drafted the token that it is at, of which half is left in
the mean. So a round takes::

    T = (1 - h) ((k + 1/2) d + R + S) + h max((k + 1) d, S, (R + S) / n)

Other outcomes can be drafted for in the same steps. A share g of those that are not as guessed is kept ready so. Where
the draft for one is whole when the verdict comes, it is sent at once; where R + S is shorter than a draft, the rest of
it is drafted first. In place of k d such a round has max(0, k d - R - S). To keep nothing ready is g = 0.

Streaming brings ``streamed`` tokens a second, whatever the round trip is: the verifier drafts, or decodes plainly. It
is beaten where e / T is more. T grows with R in two straight pieces, so the break-even R is that of one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

LEFT = 0.5
"""Of the token that is being drafted ahead when the verdict comes, in the mean."""
ROUNDS = 30
"""In which a step's rows and its seconds, which depend on each other, come to rest."""


def round_tokens(length: int, acceptance: float) -> float:
    """e: the mean tokens of a round."""
    return sum(acceptance**level for level in range(length + 1))


def round_seconds(
    length: int, acceptance: float, *, way: float, service: float, draft: float, in_flight: int = 0, kept: float = 0.0
) -> float:
    """T: the mean seconds of a round. ``in_flight``: n, the drafts that are on the way at a time; 0 = nothing is
    drafted before the verdict is there. ``kept``: g, the share of the other outcomes that are kept ready."""
    if not in_flight:
        return length * draft + way + service
    hit = acceptance ** (length + 1)
    drafting = (1 - kept) * length * draft + kept * max(0.0, length * draft - way - service)
    return (1 - hit) * (drafting + LEFT * draft + way + service) + hit * max(
        (length + 1) * draft, service, (way + service) / in_flight
    )


def round_rate(
    length: int, acceptance: float, *, way: float, service: float, draft: float, in_flight: int = 0, kept: float = 0.0
) -> float:
    """Tokens a second; infinite where nothing takes any time."""
    seconds = round_seconds(length, acceptance, way=way, service=service, draft=draft, in_flight=in_flight, kept=kept)
    return round_tokens(length, acceptance) / seconds if seconds > 0 else inf


def break_even(
    streamed: float, length: int, acceptance: float, *, service: float, draft: float, in_flight: int = 0
) -> float | None:
    """The round trip up to which drafts of ``length`` bring at least ``streamed`` tokens a second; None where they do
    so at no distance."""
    hit = acceptance ** (length + 1) if in_flight else 0.0
    found = longest_way(
        round_tokens(length, acceptance) / streamed,
        anew=1 - hit,
        shares=hit / in_flight if in_flight else 0.0,
        drafting=(1 - hit) * (length + (LEFT if in_flight else 0.0)) * draft,
        service=service,
        hidden=hit * max((length + 1) * draft, service),
    )
    return found if found >= 0 else None


def longest_way(seconds: float, *, anew: float, shares: float, drafting: float, service: float, hidden: float) -> float:
    """The R with which rounds take ``seconds`` together; below 0 where they take more without any.

    ``anew`` of them begin anew, and draft for ``drafting`` seconds. Those that were drafted ahead take ``hidden``
    seconds where the way does not limit them, and otherwise ``shares`` of a way and of the verifier's step, h / n of
    each. The longer time holds, and so the shorter way. The numbers are those of one mean round or of any sum.
    """
    left = seconds - drafting
    ways = [(left - service * anew - hidden, anew), (left - service * (anew + shares), anew + shares)]
    return min(time / share if share > 0 else inf if time >= 0 else -inf for time, share in ways)


def best_break_even(
    streamed: float, longest: int, acceptance: float, *, service: float, draft: float, in_flight: int = 0
) -> float | None:
    """The longest break-even round trip of all lengths up to ``longest``."""
    found = [
        break_even(streamed, length, acceptance, service=service, draft=draft, in_flight=in_flight)
        for length in range(longest + 1)
    ]
    return max((way for way in found if way is not None), default=None)


def shared_rate(
    sessions: int,
    length: int,
    acceptance: float,
    *,
    way: float,
    step: Callable[[int], float],
    draft: float,
    in_flight: int = 0,
) -> float:
    """Tokens a second of so many ``sessions`` together on one verifier, of which a step with so many rows takes
    ``step(rows)`` seconds.

    A draft that begins anew comes at any moment of a step, waits for its end, half a step in the mean, and is verified
    in the next one. One that was sent ahead takes part in the step that follows. So S is a step and a half where a
    round begins anew, and otherwise a step. A step has the drafts that came during the one before: of the sessions as
    many as a step is of a round, at least one. The verifier can do no more than verify all of them in each step.
    """
    rows, drafted = float(sessions * (length + 1)), length + (LEFT if in_flight else 0.0)
    hit = acceptance ** (length + 1) if in_flight else 0.0
    for _ in range(ROUNDS):
        seconds = step(max(1, round(rows)))
        again = max((length + 1) * draft, seconds, (way + 1.5 * seconds) / max(in_flight, 1))
        taken = (1 - hit) * (drafted * draft + way + 1.5 * seconds) + hit * again
        rows += (sessions * min(1.0, seconds / taken) * (length + 1) - rows) / 2
    return sessions * round_tokens(length, acceptance) / taken
