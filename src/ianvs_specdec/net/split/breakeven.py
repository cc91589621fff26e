"""Throughput of split decoding, and the round trip up to which it is faster than streaming.

docs/split.md derives the formulas: k draft tokens (``length``), each accepted with probability a (``acceptance``), a
round trip R, a verifier step S (``service``), and d per drafted token (``draft``), all times in seconds.
"""

from __future__ import annotations

from math import inf


def round_tokens(length: int, acceptance: float) -> float:
    """Mean number of tokens of a round (e)."""
    return sum(acceptance**level for level in range(length + 1))


def round_seconds(
    length: int, acceptance: float, *, round_trip: float, service: float, draft: float, in_flight: int = 0
) -> float:
    """Mean duration of a round (T). ``in_flight`` 0: no drafts are sent ahead."""
    waiting = round_trip + service
    fresh = length * draft + waiting
    if not in_flight:
        return fresh
    hit = acceptance ** (length + 1)
    return (1 - hit) * fresh + hit * max((length + 1) * draft, service, waiting / in_flight)


def break_even_round_trip(
    seconds: float, *, fresh: float, shares: float, drafting: float, service: float, hidden: float
) -> float:
    """The round trip R at which all rounds take ``seconds``; negative if they take longer even without one.

    ``fresh`` rounds wait for a draft, whose drafting takes ``drafting`` seconds in total. The rounds that were sent
    ahead take ``hidden`` seconds, or ``shares`` of a round trip and a verifier step, whichever is longer.
    """
    left = seconds - drafting
    limits = [(left - service * fresh - hidden, fresh), (left - service * (fresh + shares), fresh + shares)]
    return min(time / share if share > 0 else inf if time >= 0 else -inf for time, share in limits)
