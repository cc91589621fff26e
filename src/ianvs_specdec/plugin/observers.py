"""Notifications about requests to the edge and the cloud model of this process, for routers.

Ianvs passes only rows to a router and gives modules no references to each other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, Protocol


class Observer(Protocol):
    """Called from the threads that answer queries. Its exceptions fail the test case."""

    def began(self, side: str, data: Any) -> None:
        """A request of this row to ``side`` (edge or cloud) starts."""

    def ended(self, side: str, data: Any, response: Mapping[str, Any] | None) -> None:
        """The request ends. ``response``: see ``records.response``; None after an error that ends the run."""


_observers: tuple[weakref.ref[Any], ...] = ()
_mutex = threading.Lock()


def subscribe(observer: Observer) -> None:
    """Notify ``observer`` from now on. Only a weak reference is stored."""
    global _observers
    with _mutex:
        alive = [known for known in _observers if known() is not None and known() is not observer]
        _observers = (*alive, weakref.ref(observer))


def began(side: str, data: Any) -> None:
    for observer in _present():
        observer.began(side, data)


def ended(side: str, data: Any, response: Mapping[str, Any] | None) -> None:
    for observer in _present():
        observer.ended(side, data, response)


def _present() -> list[Observer]:
    return [observer for known in _observers if (observer := known()) is not None]
