"""The process of the tests: they call the program's function, in another process, and judge what it returns."""

from __future__ import annotations

import builtins
from typing import Any

from ianvs_specdec.benchmarks.sandboxed import program
from ianvs_specdec.benchmarks.sandboxed.channel import Channel, Lost, told
from ianvs_specdec.benchmarks.sandboxed.values import Opaque, decoded, encoded


def run(channel: Channel, order: dict[str, Any]) -> dict[str, Any]:
    """The verdict: ``error`` is "" if program and tests came to their end, ``lost`` says that the program did not tell
    how it ended ("gone" or "garbled"), ``held`` what confined it.
    """
    held: list[str] = []
    program.harden()
    try:
        held = list(map(str, _part(channel.receive(), "held")))
        if error := str(_part(channel.receive(), "error")):
            return {"error": error, "held": held}
        _test(order, Remote(channel))
    except Lost as reason:
        return {"error": "lost", "lost": str(reason), "held": held}
    except BaseException as reason:
        return {"error": told(reason), "held": held}
    return {"error": "", "held": held}


def _part(message: dict[str, Any], name: str) -> Any:
    if name not in message:
        raise Lost(garbled=True)
    return message[name]


def _test(order: dict[str, Any], candidate: Remote) -> None:
    """What the prompt defines beside the function may be used by the tests. Python's exceptions pass through."""
    space: dict[str, Any] = {"__name__": "tests", "__builtins__": __builtins__}
    exec(compile(order["setup"], "prompt.py", "exec"), space)
    space[order["entry_point"]] = candidate
    exec(compile(order["tests"], "tests.py", "exec"), space)


class Remote:
    """The program's function, seen from here."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [_handed(item) for item in args]
        self._channel.send({"args": given, "kwargs": _handed(kwargs)})
        reply = self._channel.receive()
        if "raised" in reply:
            raise _exception(str(reply["raised"]), str(_part(reply, "text")))
        try:
            value, after = decoded(_part(reply, "value")), [decoded(item) for item in _part(reply, "args")]
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError):
            raise Lost(garbled=True) from None
        for before, now, own in zip(given, reply["args"], zip(args, after, strict=False), strict=False):
            if before != now:
                _change(*own)
        return value


def _handed(value: Any) -> Any:
    found = encoded(value)
    if isinstance(decoded(found), Opaque):
        raise TypeError(f"the tests hand over a {type(value).__name__}; only plain values reach the program")
    return found


def _change(own: Any, after: Any) -> None:
    """A function may change lists, sets and dicts that it was given."""
    if isinstance(own, list) and isinstance(after, list):
        own[:] = after
    elif isinstance(own, (set, dict)) and isinstance(after, type(own)):
        own.clear()
        own.update(after)


def _exception(name: str, text: str) -> BaseException:
    kind = getattr(builtins, name, None)
    text = text.partition(": ")[2]
    if isinstance(kind, type) and issubclass(kind, BaseException):
        try:
            return kind(text) if text else kind()
        except TypeError:
            pass
    # The name is the program's: no more of it than an identifier.
    named: type[Exception] = type(name if name.isidentifier() else "Exception", (Exception,), {})
    return named(text)
