"""Requests that get no answer, those for a model of an unknown name among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


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


def check_model(asked: str, models: Sequence[str]) -> None:
    """Raise Refusal for a name that is none of the ``models``, which may have more names than they list."""
    if asked not in models:
        message = f"the model {asked[:256]!r} does not exist here; this server has {', '.join(map(repr, models))}"
        raise Refusal(404, message, param="model", code="model_not_found")
