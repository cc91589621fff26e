"""What a step takes beside its rows: for each token of context that it reads, and for each request."""

from __future__ import annotations

MEMORY = 100
"""Steps over which it is learned."""
LITTLE_CONTEXT, LITTLE_REQUESTS, LITTLE_ROWS = 200_000.0, 4.0, 0.01
"""While the contexts of steps of a size (tokens), their requests or their rows have differed by less in squares, over
that of the steps' work, what they take is mostly noise."""


class Beside:
    """A least squares fit over steps that differ from others of their size, neither term below 0. Times are in units of
    the machine's speed, and known to about the same part of themselves: so each counts by its own."""

    def __init__(self) -> None:
        self.context = self.requests = 0.0
        # Sums of products of rows, context, requests and what steps took.
        self._sums = [0.0] * 9

    def of(self, context: float, requests: float) -> float:
        return self.context * context + self.requests * requests

    def learn(self, rows: float, context: float, requests: float, work: float, surprise: float) -> None:
        """A step with so many more rows, so much more context and so many more requests than its size has on average
        took longer than expected, by ``surprise`` in logs."""
        told, keep = surprise + self.of(context, requests) / work, 1 - 1 / MEMORY
        r, c, q = rows / work, context / work, requests / work
        products = (r * r, r * c, r * q, r * told, c * c, c * q, c * told, q * q, q * told)
        self._sums = [keep * old + new for old, new in zip(self._sums, products, strict=True)]
        rr, rc, rq, rt, cc, cq, ct, qq, qt = self._sums
        # What the rows themselves explain is not beside them: where each request has one row, that is all.
        rr += LITTLE_ROWS
        cc, cq, ct = cc - rc * rc / rr + LITTLE_CONTEXT, cq - rc * rq / rr, ct - rc * rt / rr
        qq, qt = qq - rq * rq / rr + LITTLE_REQUESTS, qt - rq * rt / rr
        apart = cc * qq - cq * cq
        self.context, self.requests = (ct * qq - qt * cq) / apart, (qt * cc - ct * cq) / apart
        # Neither makes a step faster.
        if self.context < 0:
            self.context, self.requests = 0.0, max(qt / qq, 0.0)
        elif self.requests < 0:
            self.context, self.requests = max(ct / cc, 0.0), 0.0
