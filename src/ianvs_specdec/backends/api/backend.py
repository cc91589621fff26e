"""Any server that speaks the OpenAI chat completions protocol: streamed, repeated within a deadline and a budget, from
many threads, the key kept secret.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ianvs_specdec.backends.api.endpoints import Endpoint, trusted
from ianvs_specdec.backends.api.options import ApiOptions
from ianvs_specdec.backends.api.secrets import check_no_secrets
from ianvs_specdec.backends.base import LLM, NO_HINTS, OnChunk
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.backends.top_logprobs import TOP
from ianvs_specdec.common.errors import UserError, unknown, warn_once
from ianvs_specdec.common.settings import Settings
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling
from ianvs_specdec.records.identity import FileDigests, machine

if TYPE_CHECKING:
    from ianvs_specdec.backends.api.session import Session


class APIBasedLLM(LLM):
    """A model behind an API, asked from many threads at once.

    Times in the trace count from the call: waiting for a place and failed attempts are in them. So are the bytes of
    all attempts; a new connection belongs to the request that opened it. A request that is not answered raises
    AnswerError, or UserError where no request would be. An answer that the server's content filter has cut is an
    answer, with finish reason "stop".

    ``logprobs`` asks for the ``TOP`` likeliest tokens beside each token (``top_logprobs`` in ``api_extra_body`` for a
    server that gives fewer), so that the entropy is approximate (see ``top_logprobs``); with ``{specdec: true}`` it is
    the engine's own. Servers count tokens for which they return nothing, such as the one that ends the output.
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
        """What is missing for asking a server: the certificates to trust, a key, or the URL itself."""
        try:
            trusted(self.options.api_ca)
            for endpoint in self.endpoints:
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
                from ianvs_specdec.backends.api.session import Session

                self._session = Session(self.endpoints, self.options)
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
        from ianvs_specdec.backends.api.session import Call

        session = self._open()
        return session.answer(
            Call(self.body(messages, sampling), self.options.api_deadline, sampling.max_tokens, on_chunk)
        )

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
            # Our own server returns the exact figures.
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
