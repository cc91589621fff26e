"""Sizes of which little is known, drawn together."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.lengths.smoothing import smoothed

NO = np.zeros(9, dtype=bool)
ROWS = np.array([8.0, 16, 32, 64, 128, 190, 256, 320, 400])


def drawn(work, errors, often=NO):
    """What is made of sizes whose times are each known but for such a part of it."""
    work, errors = np.array(work), np.broadcast_to(errors, len(work))
    return smoothed(ROWS, work, work, (errors * work) ** 2, np.zeros(len(work)), often)


def test_few_steps_of_several_sizes_tell_of_a_bend_together():
    """As on a GPU, where rows are free up to some 190."""
    times = np.maximum(6.0, 6.0 * ROWS / 190)
    assert drawn(times, 0.2)[-4:] == pytest.approx(times[-4:], rel=0.1)


def test_a_single_size_that_was_late_tells_little():
    times = np.full(9, 6.0)
    times[-2] = 9.0
    assert drawn(times, 0.2) == pytest.approx(np.full(9, 6.0), rel=0.1)


def test_an_error_that_all_share_is_no_bend():
    times = 2.0 + ROWS / 100
    shifted = times + np.where(ROWS > 100, 1.0, 0.0)
    shared = np.where(ROWS > 100, 1.0, 0.0)
    result = smoothed(ROWS, times, shifted, (0.02 * times) ** 2, shared, NO)
    assert np.diff(result) / np.diff(ROWS) == pytest.approx(np.full(8, 0.01), rel=0.1)


def test_times_bend_downward_only_where_that_was_seen_often():
    """Else rows that were seen with a fast machine would take no longer than fewer that were seen with a slow one."""
    times = np.minimum(0.5 + ROWS / 20, 3.7)
    away = np.abs(drawn(times, 0.2) - times).max()
    assert away > 0.6
    assert drawn(times, 0.05, ~NO) == pytest.approx(times, rel=0.05)
