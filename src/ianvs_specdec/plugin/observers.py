"""Notifications of what the edge and the cloud model are asked in this process, and of the answers.

Routers that depend on load or learn from answers subscribe. Ianvs hands a router nothing but rows, and constructs its
modules without references to each other.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any, Protocol


class Observer(Protocol):
    """Called from the threads that queries are answered in. An observer's errors are the test case's."""

    def began(self, side: str, data: Any) -> None:
        """``side`` (edge or cloud) is asked for an answer to this row."""

    def ended(self, side: str, data: Any, response: Mapping[str, Any] | None) -> None:
        """What became of it: see ``response``; None where the run ends with an error."""


_observers: tuple[weakref.ref[Any], ...] = ()
_mutex = threading.Lock()


def subscribe(observer: Observer) -> None:
    """Notify ``observer`` from now on, for as long as something else refers to it."""
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
