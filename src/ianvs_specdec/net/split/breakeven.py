"""How fast an edge and a verifier decode together, and up to which round trip that beats streaming.

docs/split.md has the formulas: of drafts with k tokens (``length``), right with probability a (``acceptance``), a round
trip R (``way``), a step S of the verifier (``service``), and d to draft a token (``draft``), all in seconds.
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
