"""The network path between edge and cloud, emulated between real sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ianvs_specdec.net.link.path import Path

if TYPE_CHECKING:
    from ianvs_specdec.net.link.thread import Link

__all__ = ["Link", "Path"]


def __getattr__(name: str) -> Any:
    # A job that only checks a path needs no event loop.
    if name == "Link":
        from ianvs_specdec.net.link.thread import Link

        return Link
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
