"""Any server that speaks the OpenAI chat completions protocol: streamed, retried, within a deadline, the key kept
secret.
"""

from __future__ import annotations

import os
import random
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any, ClassVar

from ianvs_specdec.errors import UserError, unknown
from ianvs_specdec.identity import FileDigests, machine
from ianvs_specdec.llm.base import LLM, NO_HINTS, OnChunk
from ianvs_specdec.types import Completion, Hints, Message, Sampling, Trace

RETRIED_STATUS = frozenset({408, 409, 429})
FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class APIBasedLLM(LLM):
    """A model behind an API.

    ``api_base_url`` is a URL, or the name of an environment variable that holds it; ``api_key_env`` names the one that
    holds the key, which is never written or logged. A server on this machine may do without a key. ``api_timeout``:
    seconds without any sign of life after which an attempt is given up; ``api_deadline``: seconds for one answer with
    all its attempts; ``api_retries``: attempts after the first. Rejected requests (4xx) are not repeated, except 408,
    409 and 429.

    A stream tells how many tokens it held only at its end (some servers with every chunk). Until then chunks are
    counted by characters: each gets its share of the total in proportion, rounded so that the sum is right. Times in
    the trace count from the first attempt.
    """

    backend: ClassVar[str] = "api"
    local: ClassVar[bool] = False

    def __init__(
        self,
        model: str,
        *,
        api_base_url: str = "OPENAI_BASE_URL",
        api_key_env: str = "OPENAI_API_KEY",
        api_provider: str = "openai",
        api_timeout: float = 60.0,
        api_deadline: float = 600.0,
        api_retries: int = 5,
    ) -> None:
        super().__init__(model)
        if api_provider != "openai":
            hint = "servers of other providers that speak the same protocol work by their api_base_url"
            raise UserError(f"{unknown('api_provider', api_provider, ['openai'])}; {hint}", key="api_provider")
        for name, value, least in (
            ("api_timeout", api_timeout, 0.001),
            ("api_deadline", api_deadline, 0.001),
            ("api_retries", api_retries, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < least:
                raise UserError(f"{name} must be a number from {least}, not {value!r}", key=name)
        for name, text in (("api_base_url", api_base_url), ("api_key_env", api_key_env)):
            if not isinstance(text, str) or not text:
                raise UserError(f"{name} must be a name or URL, not {text!r}", key=name)
        self.base_url_or_env, self.key_env = api_base_url, api_key_env
        self.timeout, self.deadline, self.retries = float(api_timeout), float(api_deadline), int(api_retries)
        self._client: Any = None
        self._key = ""

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return ("api_base_url", "api_key_env", "api_provider", "api_timeout", "api_deadline", "api_retries")

    def base_url(self) -> str:
        """The URL asked. Raises UserError if it is to come from an environment variable that is not set."""
        url = self.base_url_or_env if "://" in self.base_url_or_env else os.environ.get(self.base_url_or_env, "")
        if "://" not in url:
            message = f"the environment variable {self.base_url_or_env} (api_base_url) holds no URL"
            raise UserError(f"{message}; set it, or write the URL itself under api_base_url", key="api_base_url")
        return url

    def server(self) -> str:
        """The URL as it may be told and recorded: without user name, password and query."""
        parts = urllib.parse.urlsplit(self.base_url())
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {"backend": self.backend, "server": self.server(), "model": self.model}

    def load(self) -> None:
        if self._client is not None:
            return
        try:
            import openai
        except ImportError as error:
            raise UserError("back end api needs the package openai: pip install openai", key="backend") from error
        url = self.base_url()
        self._key = os.environ.get(self.key_env, "")
        if not self._key and urllib.parse.urlsplit(url).hostname not in LOOPBACK:
            raise UserError(
                f"the environment variable {self.key_env} (api_key_env) holds no API key", key="api_key_env"
            )
        self._client = openai.OpenAI(api_key=self._key or "none", base_url=url, timeout=self.timeout, max_retries=0)

    def hardware(self) -> Mapping[str, Any]:
        return {"server": urllib.parse.urlsplit(self.base_url()).hostname, "client": dict(machine())}

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def generate(
        self,
        messages: list[Message],
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
    ) -> Completion:
        self.load()
        started = time.perf_counter()
        attempt = 0
        while True:
            attempt += 1
            stream = _Stream(started, started + self.deadline, on_chunk)
            try:
                return stream.read(self._client, self._request(messages, sampling, stream.left(self.timeout)))
            except UserError:
                raise
            except Exception as error:
                pause = _pause(error, attempt)
                reason = self._describe(error)
                if pause is None:
                    raise UserError(f"the API at {self.server()} refused the request: {reason}") from None
                tries = f"{attempt} attempt{'s' if attempt > 1 else ''} in {time.perf_counter() - started:.1f} s"
                if stream.sent or attempt > self.retries or time.perf_counter() + pause > started + self.deadline:
                    raise UserError(f"the API at {self.server()} gave no answer after {tries}: {reason}") from None
                time.sleep(pause)

    def _request(self, messages: list[Message], sampling: Sampling, timeout: float) -> dict[str, Any]:
        extra = {"repetition_penalty": sampling.repetition_penalty} if sampling.repetition_penalty != 1 else {}
        extra |= {"top_k": sampling.top_k} if sampling.top_k else {}
        return {
            "model": self.model,
            "messages": messages,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
            **({"extra_body": extra} if extra else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
            "timeout": timeout,
        }

    def _describe(self, error: Exception) -> str:
        text = str(error).strip() or type(error).__name__
        cause = str(error.__cause__ or "").strip()
        text = f"{text} ({cause})" if cause and cause not in text else text
        return text.replace(self._key, "***") if self._key else text


class _BrokenStream(Exception):
    """The stream ended before the answer did."""


class _OutOfTime(Exception):
    """The deadline passed."""


class _Stream:
    """One attempt at an answer."""

    def __init__(self, started: float, deadline: float, on_chunk: OnChunk | None) -> None:
        self._started, self._deadline, self._on_chunk = started, deadline, on_chunk
        self._pieces: list[tuple[float, int, int | None]] = []
        self._text = ""
        self.sent = False

    def left(self, at_most: float) -> float:
        return max(0.001, min(at_most, self._deadline - time.perf_counter()))

    def read(self, client: Any, request: dict[str, Any]) -> Completion:
        usage = finish_reason = None
        ended = 0.0
        with client.chat.completions.create(**request) as stream:
            for chunk in stream:
                now = time.perf_counter()
                if now > self._deadline:
                    raise _OutOfTime("the deadline (api_deadline) passed in the middle of the answer")
                usage = chunk.usage or usage
                for choice in chunk.choices[:1]:
                    self._take(choice.delta.content, now, chunk.usage)
                    if choice.finish_reason:
                        finish_reason, ended = choice.finish_reason, now
        if finish_reason is None:
            raise _BrokenStream(f"the stream ended after {len(self._text)} characters without a finish reason")
        if usage is None:
            raise UserError("the server does not report token usage in streams (stream_options: include_usage)")
        chunks = self._chunks(usage.completion_tokens) or (
            [(ended - self._started, usage.completion_tokens)] if usage.completion_tokens else []
        )
        reason = "length" if finish_reason == "length" else "stop"
        return Completion(self._text, [], usage.prompt_tokens, usage.completion_tokens, reason, Trace(chunks))

    def _take(self, piece: str | None, now: float, usage: Any) -> None:
        if not piece:
            return
        self._text += piece
        counted = usage.completion_tokens if usage else None
        self._pieces.append((now - self._started, len(self._text), counted))
        if self._on_chunk is not None:
            self.sent = True
            self._on_chunk(piece, 0)

    def _chunks(self, tokens: int) -> list[tuple[float, int]]:
        """Times with token counts that add up to ``tokens``."""
        chunks, before = [], 0
        for index, (seconds, characters, counted) in enumerate(self._pieces):
            last = index == len(self._pieces) - 1
            share = round(tokens * characters / len(self._text)) if counted is None else min(counted, tokens)
            upto = tokens if last else max(before, share)
            chunks.append((seconds, upto - before))
            before = upto
        return chunks


def _pause(error: Exception, attempt: int) -> float | None:
    """Seconds to wait before trying again, or None if trying again cannot help."""
    import openai

    asked = None
    if isinstance(error, openai.APIStatusError):
        if error.status_code < 500 and error.status_code not in RETRIED_STATUS:
            return None
        asked = _retry_after(error.response.headers.get("retry-after"))
    elif not (
        isinstance(error, (openai.APIError, _BrokenStream, _OutOfTime, OSError, ValueError))
        # The client's transport raises its own errors once a stream is open; which package that is depends on its
        # version.
        or any(base.__name__ == "TransportError" for base in type(error).__mro__)
    ):
        raise error
    if asked is not None:
        return asked
    return float(min(LONGEST_DELAY, FIRST_DELAY * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))


def _retry_after(value: str | None) -> float | None:
    try:
        return max(0.0, float(value)) if value else None
    except ValueError:
        import email.utils

        try:
            return max(0.0, email.utils.parsedate_to_datetime(str(value)).timestamp() - time.time())
        except ValueError:
            return None
