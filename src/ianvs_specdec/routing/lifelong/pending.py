"""Feedback on answers that may still come: so much and no more, however much is sent about queries nobody asks."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque

from ianvs_specdec.routing.lifelong.feedback import Feedback


class PendingFeedback:
    """At most ``most`` feedbacks; each further one displaces the oldest. Every call takes a time that does not depend
    on how many there are. ``displaced`` counts.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers = itertools.count()
        self._items: OrderedDict[int, Feedback] = OrderedDict()
        self._places: dict[tuple[str, str], deque[int]] = {}
        self.displaced = 0

    def add(self, feedback: Feedback) -> None:
        number = next(self._numbers)
        self._items[number] = feedback
        self._places.setdefault((feedback.query, feedback.side), deque()).append(number)
        if len(self._items) > self._most:
            _, oldest = self._items.popitem(last=False)
            key = oldest.query, oldest.side
            # What is displaced is the oldest of its key, too.
            self._places[key].popleft()
            if not self._places[key]:
                del self._places[key]
            self.displaced += 1

    def take(self, query: str, side: str) -> list[Feedback]:
        """What there is on this answer, the oldest first; it is pending no more."""
        return [self._items.pop(number) for number in self._places.pop((query, side), ())]

    def __len__(self) -> int:
        return len(self._items)
