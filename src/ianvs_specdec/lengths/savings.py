"""What may be lost on learning and on thinking: shares of the time."""

from __future__ import annotations

PROBE = 0.006
"""The share of the time that may be lost on trials, and on asking drafters again that did not pay. Where a trial is to
be saved up for, half of it is for asking: many requests could spend all of it."""
START, MORE = 4, 2
"""Steps' time that may be lost on trials from the start, and again where there are so many times as many requests as
ever before: what these teach lasts, but few requests teach little of many."""
CHANGES, KEPT = 0.003, 8
"""The share of the time that may be lost, beside that, where times seem to have changed, and the steps' time that may
be lost so at once, as at the start: on a machine that others use as well, times seem to change again and again, mostly
for a moment."""

SURPRISE, FOLLOW = 2.0, 1 / 8
"""What something took counts as so many times its price at the most, since a process may be interrupted; and the price
follows by that power of it."""


class Savings:
    """Seconds that may be lost: the whole ``fund``, what of it is ``for_probes`` (asking again) whatever else is
    wanted, and what the next trial takes, which the rest is ``saved_for``. Those
    ``for_changes`` are no part of the fund."""

    def __init__(self) -> None:
        self.fund = self.for_probes = self.saved_for = self.for_changes = 0.0
        self._most = 0
        """The most requests for which trials were granted."""

    def earn(self, taken: float) -> None:
        """A step took so many seconds."""
        self.fund += PROBE * taken
        self.for_probes += PROBE / 2 * taken
        self.for_changes += CHANGES * taken

    def reach(self, requests: int, seconds: float) -> bool:
        """A step of so many requests takes so many seconds. Returns whether they are many more than ever before, for
        which something is granted."""
        if requests < MORE * self._most:
            return False
        self._most = requests
        self.fund += START * seconds
        self.for_changes = KEPT * seconds
        return True

    def look(self, steps: int, seconds: float) -> bool:
        """Times seem to have changed. Returns whether so many ``steps`` may be made to look at them, each of so many
        ``seconds``; if so, as much as one of them is granted for trials."""
        price = (steps + 1) * seconds
        self.for_changes = min(self.for_changes, KEPT * seconds)
        if self.for_changes < price:
            return False
        self.for_changes -= price
        self.fund += seconds
        return True

    def allow(self, price: float) -> bool:
        """Whether asking again at that price may be paid."""
        return self.fund >= price + (self.saved_for if self.for_probes < price else 0.0)

    def ask(self, price: float) -> None:
        """Asking again is paid; a negative price is what it brought."""
        self.fund -= price
        self.for_probes -= price

    def attempt(self, price: float) -> None:
        """A trial is paid."""
        self.fund -= max(price, 0.0)


class Allowance:
    """Seconds for something that takes about ``price`` seconds each time: ``share`` of the time, saved up for it to be
    done at most ``most`` times at once; at the start, once less."""

    def __init__(self, price: float, share: float, most: int) -> None:
        self.price, self._share, self._most = price, share, most
        self._saved, self._paid = (most - 1) * price, False

    def earn(self, taken: float) -> None:
        """A step took so many seconds."""
        self._saved = min(self._saved + self._share * taken, self._most * self.price)

    def affords(self, times: int) -> bool:
        """Whether enough is saved for so many times."""
        return self._saved >= times * self.price

    def pay(self, anyway: bool = False) -> bool:
        """Whether it may be done now, which is paid then; ``anyway``: it is done, and what comes later pays for it, as
        far as that can be owed: no more than can be saved."""
        self._paid = anyway or self._saved >= self.price
        if self._paid:
            self._saved = max(self._saved - self.price, -self._most * self.price)
        return self._paid

    def took(self, seconds: float) -> None:
        """If it was paid for this step, it took so many seconds; 0: nobody measured that. The price follows."""
        if self._paid and seconds:
            self.price *= min(max(seconds / self.price, 1 / SURPRISE), SURPRISE) ** FOLLOW
        self._paid = False
