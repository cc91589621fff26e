"""What steps of each size take, drawn together where little is known of them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.lengths.evidence import Floats

BEND, KNEES = 0.02, 3
"""How far off, as a share of what it takes, a size is from the line through those around it; and how many sizes may be
farther off, where the times bend: where a processor no longer waits for the weights, or its kernels change."""
SURE = 1 - 1e-9
"""The most that is known of a bend from itself alone, for rounding's sake."""


def smoothed(
    rows: Floats, whole: Floats, work: Floats, spreads: Floats, shared: Floats, often: NDArray[np.bool_]
) -> Floats:
    """The ``work`` of three sizes or more, ascending in ``rows``, as it is likeliest by that of all of them. Each is
    known up to a variance (``spreads``) of its own and an error that all share, so many times (``shared``). What a step
    takes ``whole`` says what its bend is measured by.

    A size bends the line as far as that makes all that is known likeliest (Tipping and Faul 2003, "Fast marginal
    likelihood maximisation for sparse Bayesian models"), the one that gains most first. So several sizes that were
    hardly seen tell of a bend together, and a single one that was late tells little. Downward a size does so only if
    it and those beside it were seen ``often``: else a machine whose speed changes would seem to bend all the time, and
    rows that were never seen to take no time.
    """
    low, middle, high = rows[:-2], rows[1:-1], rows[2:]
    share, place = (middle - low) / (high - low), np.arange(len(middle))
    bends = np.zeros((len(middle), len(rows)))
    bends[place, place], bends[place, place + 1], bends[place, place + 2] = share - 1, 1.0, -share
    bends /= (BEND * whole[1:-1])[:, None]
    # The inverse of the covariance ``diag(spreads) + outer(shared, shared)`` (Sherman and Morrison 1950).
    alike = shared / spreads
    known = np.diag(1 / spreads) - np.outer(alike, alike) / (1 + alike @ shared)
    certain = often[:-2] & often[1:-1] & often[2:]
    covariance = np.linalg.inv(known + bends.T @ bends)
    smooth: Floats = covariance @ (known @ work)
    for _ in range(KNEES):
        along = bends @ covariance
        # By all else that is known, each bend is off / rest, up to the variance 1 / rest - 1.
        off, rest = bends @ smooth, 1 - np.minimum((along * bends).sum(1), SURE)
        gains = np.where((off < 0) | certain, off**2 / rest, 0.0)
        knee = int(gains.argmax())
        own = float(gains[knee] - 1) / float(rest[knee])
        if own <= 0:
            break
        # Its variance is 1 + own now.
        less = own / (1 + own * float(rest[knee]))
        smooth = smooth + less * off[knee] * along[knee]
        covariance += less * np.outer(along[knee], along[knee])
        bends[knee] /= math.sqrt(1 + own)
    return smooth
