"""Where something goes wrong with a request, only that one ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from ianvs_specdec.engine.request import Request

P = ParamSpec("P")
R = TypeVar("R")


def each(requests: Sequence[Request], call: Callable[[Request], None]) -> None:
    """``call`` for each of the requests; where it raises, only that one ends."""
    for request in requests:
        try:
            call(request)
        except Exception as error:
            request.fail(error)


def guarded(request: Request, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """What ``function`` returns; where it raises, only ``request`` ends."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        request.fail(error)
        return None
