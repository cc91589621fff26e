"""A trace at another rate keeps its pattern."""

from __future__ import annotations

from ianvs_specdec.load.patterns import Arrival, scaled

TRACE = [Arrival(second, 10, tokens) for second, tokens in ((0, 5), (1, 50), (1, 500), (4, 5), (8, 5))]


def test_the_first_requests_are_stretched_or_squeezed_to_the_time() -> None:
    assert [one.seconds for one in scaled(TRACE, 2.0, 2.0)] == [0.0, 0.25, 0.25, 1.0]
    assert [one.seconds for one in scaled(TRACE, 0.4, 10.0)] == [0.0, 1.25, 1.25, 5.0]
    assert [one.output_tokens for one in scaled(TRACE, 2.0, 2.0)] == [5, 50, 500, 5]
    # Nobody knows how long the pause after the last one was: as long as the mean.
    assert [one.seconds for one in scaled(TRACE, 5.0, 1.0)] == [0.0, 0.1, 0.1, 0.4, 0.8]
    assert scaled(TRACE, 0.1, 1.0) == []
