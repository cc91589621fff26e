"""Any server that speaks the OpenAI chat completions protocol: streamed, repeated within a deadline and a budget, from
many threads, the key kept secret.
"""

from __future__ import annotations

import logging
import reprlib
import threading
from collections.abc import Mapping
from typing import Any, ClassVar

from ianvs_specdec.backends.api.endpoints import Endpoint
from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.backends.api.session import Call, Session
from ianvs_specdec.backends.base import LLM, NO_HINTS, OnChunk
from ianvs_specdec.backends.specdec import of_method
from ianvs_specdec.backends.top_logprobs import TOP
from ianvs_specdec.common.errors import UserError, unknown, warn_once
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling
from ianvs_specdec.records.identity import FileDigests, machine

log = logging.getLogger(__name__)

LONGEST_SECONDS = 1e6
"""Eleven days; what is much longer no socket waits."""


class APIBasedLLM(LLM):
    """A model behind an API, asked from many threads at once.

    - ``api_base_url`` is a URL, or the name of an environment variable that holds it, which a URL with a password
      must; ``api_key_env`` names the one that holds the key, which is never written or logged. A server on this
      machine may do without a key.
    - ``api_endpoints``: several servers in place of one, a list of ``{base_url, key_env, weight, model}`` of which only
      ``base_url`` is needed. What one fails to answer goes to another; see ``Endpoints``.
    - ``api_timeout``: seconds without any sign of life after which an attempt is given up; ``api_deadline``: seconds
      for one answer with all its attempts and all its waiting; ``api_retries``: attempts after the first;
      ``api_retry_budget``: repeated attempts of all requests, as a share of the requests (the first ten are free).
      Rejected requests (4xx) are not repeated, except 408, 409, 425 and 429.
    - ``api_concurrency``: requests in flight at once; ``api_rate``, ``api_token_rate``: requests and tokens per minute
      (a token is reckoned as four characters of prompt, plus ``max_tokens``, until the server has counted). All are
      over all endpoints, and without limit by default.
    - ``api_extra_body``: a mapping merged into the request; a null takes a key out of it. ``{specdec: true}`` makes
      ``specdec serve`` tell token ids and verification steps.
    - ``api_baseline``: with ``{specdec: true}``, the settings (``model``, a folder, and ``dtype``, ``device``,
      ``threads``) with which back end autoregressive answers as the server should: what Lossless compares with.

    Times in the trace count from the call: waiting for a place and failed attempts are in them. So are the bytes of
    all attempts; a new connection belongs to the request that opened it. A request that is not answered raises
    AnswerError, or UserError where no request would be. An answer that the server's content filter has cut is an
    answer, with finish reason "stop".

    ``logprobs`` asks for the ``TOP`` likeliest tokens beside each token (``top_logprobs`` in ``api_extra_body`` for a
    server that gives fewer), so that the entropy is approximate (see ``top_logprobs``); with ``{specdec: true}`` it is
    the engine's own. Servers count tokens of which they tell nothing, such as the one that ends the output.
    """

    backend: ClassVar[str] = "api"
    local: ClassVar[bool] = False
    concurrent: ClassVar[bool] = True
    mappings: ClassVar[tuple[str, ...]] = ("api_extra_body", "api_baseline")

    def __init__(
        self,
        model: str,
        *,
        api_base_url: str = "OPENAI_BASE_URL",
        api_key_env: str = "OPENAI_API_KEY",
        api_endpoints: list[Mapping[str, Any]] | None = None,
        api_provider: str = "openai",
        api_timeout: float = 60.0,
        api_deadline: float = 600.0,
        api_retries: int = 5,
        api_retry_budget: float = 0.2,
        api_concurrency: int | None = None,
        api_rate: float | None = None,
        api_token_rate: float | None = None,
        api_extra_body: Mapping[str, Any] | None = None,
        api_baseline: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(model)
        if api_provider != "openai":
            hint = "servers of other providers that speak the same protocol work by their api_base_url"
            raise UserError(f"{unknown('api_provider', api_provider, ['openai'])}; {hint}", key="api_provider")
        _check_number("api_timeout", api_timeout, 0.001, most=LONGEST_SECONDS)
        _check_number("api_deadline", api_deadline, 0.001, most=LONGEST_SECONDS)
        _check_number("api_retries", api_retries, 0, whole=True)
        _check_number("api_retry_budget", api_retry_budget, 0)
        _check_number("api_concurrency", api_concurrency, 1, whole=True, optional=True)
        _check_number("api_rate", api_rate, 0.001, optional=True)
        _check_number("api_token_rate", api_token_rate, 0.001, optional=True)
        if api_endpoints is not None and (not isinstance(api_endpoints, list) or not api_endpoints):
            raise UserError("api_endpoints must be a list of servers", key="api_endpoints")
        servers = {"api_base_url": api_base_url, "api_key_env": api_key_env, "api_endpoints": api_endpoints}
        check_no_secrets({**servers, "api_extra_body": api_extra_body})
        for name, mapping in (("api_extra_body", api_extra_body), ("api_baseline", api_baseline)):
            if mapping is not None and not isinstance(mapping, Mapping):
                raise UserError(f"{name} must be a mapping, not {mapping!r}", key=name)
        self.endpoints = [Endpoint.parse(entry, model, api_key_env) for entry in api_endpoints or ()] or [
            Endpoint(api_base_url, api_key_env, model)
        ]
        self.timeout, self.deadline, self.retries = float(api_timeout), float(api_deadline), api_retries
        self.retry_budget, self.concurrency = float(api_retry_budget), api_concurrency
        self.rate, self.token_rate, self.extra_body = api_rate, api_token_rate, dict(api_extra_body or {})
        self._baseline = _baseline(api_baseline, self.extra_body) if api_baseline else None
        self._session: Session | None = None
        self._lock = threading.Lock()

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return (
            *("api_base_url", "api_key_env", "api_endpoints", "api_provider", "api_timeout", "api_deadline"),
            *("api_retries", "api_retry_budget", "api_concurrency", "api_rate", "api_token_rate", "api_extra_body"),
            "api_baseline",
        )

    def unready(self) -> UserError | None:
        """What the environment lacks for asking the first such server: a key, or the URL itself."""
        for endpoint in self.endpoints:
            try:
                endpoint.key()
            except UserError as error:
                return error
        return None

    def check(self, sampling: Sampling) -> None:
        if lack := self.unready():
            warn_once(f"{lack}. Until then, only answers that the journal has can be had")

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        servers = sorted({(endpoint.server(), endpoint.model) for endpoint in self.endpoints})
        where = {"server": servers[0][0]} if len(servers) == 1 else {"servers": [list(server) for server in servers]}
        return {
            "backend": self.backend,
            **where,
            "model": self.model,
            **({"extra_body": self.extra_body} if self.extra_body else {}),
        }

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        return self._baseline.baseline_identity(digests) if self._baseline else None

    def load(self) -> None:
        self._open()

    def _open(self) -> Session:
        with self._lock:
            if self._session is None:
                self._session = Session(self)
            return self._session

    def hardware(self) -> Mapping[str, Any]:
        return {"server": ", ".join(sorted({e.host() for e in self.endpoints})), "client": dict(machine())}

    def close(self) -> None:
        """Ends requests that are under way in other threads, too: they raise AnswerError."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def generate(
        self,
        messages: list[Message],
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
    ) -> Completion:
        session = self._open()
        return session.answer(Call(self.body(messages, sampling), self.deadline, sampling.max_tokens, on_chunk))

    def body(self, messages: list[Message], sampling: Sampling) -> dict[str, Any]:
        """The request, as JSON, without the model's name."""
        body = {
            "messages": messages,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
            "repetition_penalty": sampling.repetition_penalty if sampling.repetition_penalty != 1 else None,
            "top_k": sampling.top_k or None,
            "min_tokens": sampling.min_tokens or None,
            "ignore_eos": sampling.ignore_eos or None,
            "logprobs": sampling.logprobs or None,
            "chat_template_kwargs": sampling.chat_template_kwargs or None,
            # Our own server tells all that is to be known of a token itself.
            "top_logprobs": TOP if sampling.logprobs and not self.extra_body.get("specdec") else None,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra_body,
        }
        return {name: value for name, value in body.items() if value is not None}


def _check_number(
    name: str, value: Any, least: float, *, most: float = 1e9, whole: bool = False, optional: bool = False
) -> None:
    if value is None and optional:
        return
    right = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not right or not least <= value <= most:
        rule = f"{name} must be a {'whole ' if whole else ''}number from {least}"
        raise UserError(f"{rule} and at most {most:g}, not {reprlib.repr(value)}", key=name)


def _baseline(settings: Mapping[str, Any], extra_body: Mapping[str, Any]) -> LLM:
    if not extra_body.get("specdec"):
        reason = "api_baseline compares token ids, which api_extra_body: {specdec: true} asks the server for"
        raise UserError(reason, key="api_baseline")
    known = ("model", "dtype", "device", "threads")
    for key in settings:
        if key not in known:
            raise unknown("key in api_baseline", str(key), known, key="api_baseline")
    if not isinstance(settings.get("model"), str):
        raise UserError("api_baseline must name the folder of a model under model", key="api_baseline")
    return of_method("autoregressive")(**settings)
