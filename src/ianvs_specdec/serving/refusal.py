"""Requests that get no answer, those for a model of an unknown name among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


class Refusal(Exception):
    """A request that gets no answer: the HTTP status, and the error object that the protocol has for it.

    ``outcome`` is what the request counts as; see ``metrics``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        kind: str = "invalid_request_error",
        outcome: str = "rejected",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.outcome, self.headers = status, outcome, dict(headers or {})
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Models:
    """The ``names`` under which requests are answered, and a pattern of ``further`` ones, which are not listed."""

    names: tuple[str, ...]
    further: re.Pattern[str] | None = None

    def check(self, asked: str) -> None:
        """Raise Refusal for a name that is none of them."""
        if asked not in self.names and not (self.further and self.further.fullmatch(asked)):
            raise self.unknown(asked)

    def unknown(self, asked: str) -> Refusal:
        message = f"the model {asked[:256]!r} does not exist here; this server has {self}"
        return Refusal(404, message, param="model", code="model_not_found")

    def __str__(self) -> str:
        return ", ".join(map(repr, self.names))
