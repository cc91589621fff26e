"""What a step takes beside its rows: for each token of context that it reads, and for each request."""

from __future__ import annotations

MEMORY = 100
"""Steps over which it is learned."""
LITTLE_CONTEXT, LITTLE_REQUESTS = 200_000.0, 4.0
"""While the contexts of steps of a size (tokens), or their requests, have differed by less in squares, over that of the
steps' work, what they take is mostly noise."""


class Beside:
    """A least squares fit over steps that differ from others of their size, neither term below 0. Times are in units of
    the machine's speed, and known to about the same part of themselves: so each counts by its own."""

    def __init__(self) -> None:
        self.context = self.requests = 0.0
        # Sums of squares and products.
        self._both = self._of_context = self._of_requests = self._slope_context = self._slope_requests = 0.0

    def of(self, context: float, requests: float) -> float:
        return self.context * context + self.requests * requests

    def learn(self, context: float, requests: float, work: float, surprise: float) -> None:
        """A step with so much more context, and so many more requests, than its size has on average took longer than
        expected, by ``surprise`` in logs."""
        keep, told = 1 - 1 / MEMORY, surprise + self.of(context, requests) / work
        context, requests = context / work, requests / work
        self._of_context = self._of_context * keep + context * context
        self._of_requests = self._of_requests * keep + requests * requests
        self._both = self._both * keep + context * requests
        self._slope_context = self._slope_context * keep + context * told
        self._slope_requests = self._slope_requests * keep + requests * told
        one, other, both = self._of_context + LITTLE_CONTEXT, self._of_requests + LITTLE_REQUESTS, self._both
        first, second = self._slope_context, self._slope_requests
        apart = one * other - both * both
        self.context, self.requests = (first * other - second * both) / apart, (second * one - first * both) / apart
        # Neither makes a step faster.
        if self.context < 0:
            self.context, self.requests = 0.0, max(second / other, 0.0)
        elif self.requests < 0:
            self.context, self.requests = max(first / one, 0.0), 0.0
