"""A trace at another rate keeps its pattern."""

from __future__ import annotations

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.patterns import Arrival, scaled

TRACE = [Arrival(second, 10, tokens) for second, tokens in ((0, 5), (1, 50), (1, 500), (4, 5), (8, 5))]


def test_the_first_requests_are_stretched_or_squeezed_to_the_time() -> None:
    assert [one.seconds for one in scaled(TRACE, 2.0, 2.0)] == [0.0, 0.25, 0.25, 1.0]
    assert [one.seconds for one in scaled(TRACE, 0.4, 10.0)] == [0.0, 1.25, 1.25, 5.0]
    assert [one.output_tokens for one in scaled(TRACE, 2.0, 2.0)] == [5, 50, 500, 5]
    # Nobody knows how long the pause after the last one was: as long as the mean.
    assert [one.seconds for one in scaled(TRACE, 5.0, 1.0)] == [0.0, 0.1, 0.1, 0.4, 0.8]
    assert scaled(TRACE, 0.1, 1.0) == []


def test_a_trace_that_is_too_short_is_refused() -> None:
    with pytest.raises(UserError, match=r"the trace has 5 requests, and 3/s for 2 s are 6: give a longer trace"):
        scaled(TRACE, 3.0, 2.0)
    with pytest.raises(UserError, match="the first 1 requests of the trace have the same time"):
        scaled([Arrival(0.0, 1, 1), Arrival(0.0, 1, 1), Arrival(9.0, 1, 1)], 1.0, 1.0)
