"""Back end ``api``: servers with OpenAI's chat completions protocol, streamed, with retries."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ianvs_specdec.backends.api.endpoints import Endpoint, trusted
from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.backends.base import LLM, NO_HINTS, OnChunk
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.backends.top_logprobs import TOP
from ianvs_specdec.common.errors import UserError, unknown, warn_once
from ianvs_specdec.common.settings import Settings, Text
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling
from ianvs_specdec.records.identity import FileDigests, machine

if TYPE_CHECKING:
    from ianvs_specdec.backends.api.session import Session

MAX_SECONDS = 1e6
"""11 days; sockets do not support much longer timeouts."""
Seconds = Annotated[float, Field(ge=0.001, le=MAX_SECONDS)]
PerMinute = Annotated[float, Field(ge=0.001, le=1e9)]


class ApiOptions(Settings):
    """Options of ``api``. Limits are over all endpoints.

    Until the server reports its counts, a request counts as a token per 4 characters of prompt, plus ``max_tokens``.
    """

    api_base_url: Text = Field(
        "OPENAI_BASE_URL", description="a URL, or the environment variable that holds it, as one with a password must"
    )
    api_key_env: Text = Field(
        "OPENAI_API_KEY", description="the environment variable that holds the key; not needed on this machine"
    )
    api_ca: Text | None = Field(
        None, description="a PEM file of the certificates to trust in place of the system's, as of a private CA"
    )
    api_endpoints: Annotated[list[Any], Field(min_length=1)] | None = Field(
        None, description="several servers in place of one, each with base_url and perhaps key_env, weight, model"
    )
    api_provider: Literal["openai"] = Field("openai", description="the protocol; other providers have URLs for it")
    api_timeout: Seconds = Field(60.0, description="seconds without a sign of life until an attempt is given up")
    api_deadline: Seconds = Field(600.0, description="seconds for an answer with all its attempts and its waiting")
    api_retries: Annotated[int, Field(ge=0, le=10**9)] = Field(5, description="attempts after the first")
    api_retry_budget: Annotated[float, Field(ge=0, le=1e9)] = Field(
        0.2, description="repeated attempts of all requests, as a share of them; the first ten are free"
    )
    api_concurrency: Annotated[int, Field(ge=1, le=10**9)] | None = Field(None, description="requests in flight")
    api_rate: PerMinute | None = Field(None, description="requests per minute")
    api_token_rate: PerMinute | None = Field(None, description="tokens per minute")
    api_extra_body: dict[str, Any] | None = Field(
        None, description="merged into the request; null removes a key; specdec: true asks specdec serve for steps"
    )
    api_baseline: dict[str, Any] | None = Field(
        None, description="with specdec: true, the settings of autoregressive decoding that Lossless compares with"
    )


class APIBasedLLM(LLM):
    """A model behind an API. Thread-safe.

    Times and bytes of a trace include queueing and failed attempts; opening a connection counts for the request that
    opens it. An unanswered request raises AnswerError, or UserError if no request would be answered. An answer cut by a
    content filter has finish reason "stop".

    ``logprobs`` requests the ``TOP`` likeliest tokens (set ``top_logprobs`` in ``api_extra_body`` for servers with a
    lower maximum), so the entropy is approximate; with ``{specdec: true}`` it is the engine's own. Servers may count
    tokens that they do not return, such as the end token.
    """

    backend: ClassVar[str] = "api"
    local: ClassVar[bool] = False
    letters: ClassVar[bool] = True
    concurrent: ClassVar[bool] = True
    Options: ClassVar[type[Settings]] = ApiOptions

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        given = self.options
        servers = {name: getattr(given, name) for name in ("api_base_url", "api_key_env", "api_endpoints")}
        check_no_secrets({**servers, "api_extra_body": given.api_extra_body})
        self.endpoints = [Endpoint.parse(entry, model, given.api_key_env) for entry in given.api_endpoints or ()] or [
            Endpoint(given.api_base_url, given.api_key_env, model)
        ]
        self.extra_body = given.api_extra_body or {}
        self._baseline = _baseline(given.api_baseline, self.extra_body) if given.api_baseline else None
        self._session: Session | None = None
        self._lock = threading.Lock()

    def unready(self) -> UserError | None:
        """The error for missing certificates, URL or key; None if a request can be sent."""
        try:
            trusted(self.options.api_ca)
            for endpoint in self.endpoints:
                endpoint.key()
        except UserError as error:
            return error
        return None

    def check(self, sampling: Sampling) -> None:
        if lack := self.unready():
            warn_once(f"{lack}. Until then, only answers in the journal are available")

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
                from ianvs_specdec.backends.api.session import Session

                self._session = Session(self.endpoints, self.options)
            return self._session

    def hardware(self) -> Mapping[str, Any]:
        return {"server": ", ".join(sorted({e.host() for e in self.endpoints})), "client": dict(machine())}

    def close(self) -> None:
        """Close connections. Requests in other threads raise AnswerError."""
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
        from ianvs_specdec.backends.api.session import Call

        session = self._open()
        return session.answer(
            Call(self.body(messages, sampling), self.options.api_deadline, sampling.max_tokens, on_chunk)
        )

    def body(self, messages: list[Message], sampling: Sampling) -> dict[str, Any]:
        """The body of the request, without the model's name."""
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
            # Our own server returns exact values.
            "top_logprobs": TOP if sampling.logprobs and not self.extra_body.get("specdec") else None,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra_body,
        }
        return {name: value for name, value in body.items() if value is not None}


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
    return engine_backend("autoregressive")(**settings)
