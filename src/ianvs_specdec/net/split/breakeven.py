"""How fast an edge and a verifier decode together, and up to which round trip that beats streaming.

Times are in seconds. A draft has k tokens (``length``), each right with probability a (``acceptance``) where those
before it are. R is the round trip (``way``), S one step of the verifier (``service``), d what drafting a token takes
(``draft``).

A round brings e = 1 + a + ... + a^k = (1 - a^(k+1)) / (1 - a) tokens: what was accepted, and the one that the target
puts behind it. It is drafted, sent, verified and heard::

    T = k d + R + S

An edge that drafts ahead goes on behind what it sent, as if all of that were right and the token behind it as guessed.
That is so with probability h = a^(k+1). Then verdicts follow each other as fast as the slowest of three: drafting,
(k + 1) d; the verifier, S; the way, on which n drafts are at a time (``in_flight``), (R + S) / n. Else a round begins
anew::

    T = (1 - h) (k d + R + S) + h max((k + 1) d, S, (R + S) / n)

Streaming takes t for a token, whatever the round trip is. It is beaten where T < e t.
"""

from __future__ import annotations

from math import inf


def round_tokens(length: int, acceptance: float) -> float:
    """e: the mean tokens of a round."""
    return sum(acceptance**level for level in range(length + 1))


def round_seconds(
    length: int, acceptance: float, *, way: float, service: float, draft: float, in_flight: int = 0
) -> float:
    """T: the mean seconds of a round. ``in_flight`` 0: nothing is drafted ahead."""
    anew, waiting = length * draft + way + service, way + service
    if not in_flight:
        return anew
    hit = acceptance ** (length + 1)
    return (1 - hit) * anew + hit * max((length + 1) * draft, service, waiting / in_flight)


def longest_way(seconds: float, *, anew: float, shares: float, drafting: float, service: float, hidden: float) -> float:
    """The R with which rounds take ``seconds`` together; below 0 where they take more without any.

    ``anew`` of them begin anew, and draft for ``drafting`` seconds. Those that were sent ahead take ``hidden`` seconds
    where the way does not limit them, and otherwise ``shares`` of a way and of the verifier's step.
    """
    left = seconds - drafting
    ways = [(left - service * anew - hidden, anew), (left - service * (anew + shares), anew + shares)]
    return min(time / share if share > 0 else inf if time >= 0 else -inf for time, share in ways)
