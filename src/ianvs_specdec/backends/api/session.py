"""Requests to API servers: concurrency and rate limits, attempts, retries, failures."""

from __future__ import annotations

import json
import math
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

from ianvs_specdec import __version__
from ianvs_specdec.backends.api.endpoints import Endpoint, Endpoints, trusted
from ianvs_specdec.backends.api.failures import (
    MAX_BODY,
    NO_STREAM,
    AttemptError,
    RetryOutlook,
    of_exception,
    of_status,
    shortened,
)
from ianvs_specdec.backends.api.secrets import Secrets
from ianvs_specdec.backends.api.stream import StreamedAnswer, TokenBounds
from ianvs_specdec.backends.base import OnChunk
from ianvs_specdec.backends.untrusted import ImplausibleNumber
from ianvs_specdec.common.errors import AnswerError, ContextWindowError, UserError
from ianvs_specdec.common.types import Completion
from ianvs_specdec.net.http import Client, ProtocolError, Reply
from ianvs_specdec.net.sockets import DeadlineError, InterruptedRequest, Timeouts, Traffic

FIRST_DELAY, MAX_DELAY = 0.5, 30.0
"""Seconds before the first retry, doubled for each further one, and their maximum."""
CHARACTERS_PER_TOKEN = 4
FREE_RETRIES = 10
"""Retries that the budget always permits: a share of few requests is nothing."""
BURST_SECONDS = 1.0


class Places:
    """A semaphore that serves waiting threads in order of arrival, as ``threading.Semaphore`` does not."""

    def __init__(self, number: int | None) -> None:
        self._free = number or sys.maxsize
        self._waiting: deque[threading.Event] = deque()
        self._lock = threading.Lock()

    def take(self, timeout: float) -> bool:
        """Wait for a place, for at most ``timeout`` seconds. Returns whether there was one."""
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            mine = threading.Event()
            self._waiting.append(mine)
        mine.wait(timeout)
        with self._lock:
            if not mine.is_set():
                self._waiting.remove(mine)
        return mine.is_set()

    def give_back(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


class Rate:
    """Limits units (requests, tokens) per minute, with bursts of ``BURST_SECONDS``."""

    def __init__(self, per_minute: float | None) -> None:
        self._seconds_each = 60.0 / per_minute if per_minute else 0.0
        self._spent_until = float("-inf")
        self._lock = threading.Lock()

    def reserve(self, units: float, now: float) -> float:
        """Reserve units. Returns the time from which they may be used."""
        with self._lock:
            begin = max(now, self._spent_until)
            self._spent_until = max(self._spent_until, now - BURST_SECONDS) + units * self._seconds_each
            return begin

    def give_back(self, units: float) -> None:
        """Return unused units; negative for units beyond the reserved ones."""
        with self._lock:
            self._spent_until -= units * self._seconds_each


class Call:
    """A request and its attempts so far."""

    def __init__(self, body: dict[str, Any], deadline: float, max_tokens: int, on_chunk: OnChunk | None) -> None:
        self.logprobs = bool(body.get("logprobs"))
        self.started = time.perf_counter()
        self.deadline = self.started + deadline
        self.on_chunk = on_chunk
        self._rest = json.dumps(body, ensure_ascii=False)[1:]
        self.tokens = max_tokens + len(self._rest) // CHARACTERS_PER_TOKEN
        self.bounds = TokenBounds.of(body, len(self._rest.encode("utf-8", "replace")))
        self.failures: list[tuple[float, str]] = []
        self.traffic = Traffic()
        self.attempts = 0
        self.last: Endpoint | None = None

    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def payload(self, model: str) -> bytes:
        return f'{{"model": {json.dumps(model)}, {self._rest}'.encode("utf-8", "replace")


class Session:
    """Connections and limits between ``load`` and ``close``. ``limits``: the ``ApiOptions``."""

    def __init__(self, endpoints: Sequence[Endpoint], limits: Any) -> None:
        self._timeout, self._retries = limits.api_timeout, limits.api_retries
        self._closed = threading.Event()
        self._endpoints = Endpoints(endpoints)
        self._secrets = Secrets([secret for endpoint in endpoints for secret in endpoint.secrets()])
        self._places = Places(limits.api_concurrency)
        self._retry_budget, self._counting = limits.api_retry_budget, threading.Lock()
        self._begun = self._retried = 0
        self._requests, self._tokens = Rate(limits.api_rate), Rate(limits.api_token_rate)
        rates = (("api_rate", limits.api_rate), ("api_token_rate", limits.api_token_rate))
        self._rates = " and ".join(name for name, rate in rates if rate is not None)
        self._trust = trusted(limits.api_ca)
        self._clients = {endpoint: self._client(endpoint) for endpoint in endpoints}
        self._targets = {endpoint: endpoint.target() for endpoint in endpoints}
        self._several = len(endpoints) > 1

    def _client(self, endpoint: Endpoint) -> Client:
        authorization = endpoint.authorization()
        headers = {
            # Some gateways require it.
            "User-Agent": f"ianvs-specdec/{__version__}",
            "Accept": "text/event-stream",
            "Accept-Encoding": "identity",
            **({"Authorization": authorization} if authorization else {}),
        }
        return Client(endpoint.url(), headers, self._trust)

    def close(self) -> None:
        # Requests in flight fail and give their places to waiting ones, which see the event.
        self._closed.set()
        for client in self._clients.values():
            client.close()

    def answer(self, call: Call) -> Completion:
        """Try until there is an answer. Raises AnswerError, or UserError if no request would be answered."""
        with self._counting:
            self._begun += 1
        while True:
            endpoint = self._admit(call)
            pieces = self._secrets.redacted_stream(call.on_chunk) if call.on_chunk is not None else None
            answer = StreamedAnswer(pieces, logprobs=call.logprobs, bounds=call.bounds)
            try:
                completion = self._attempt(endpoint, call, answer)
            except AttemptError as failure:
                pause = self._failed(call, endpoint, failure, pieces is not None and pieces.delivered)
            else:
                if pieces is not None:
                    pieces.finish()
                self._endpoints.succeeded(endpoint)
                self._tokens.give_back(call.tokens - completion.prompt_tokens - completion.completion_tokens)
                completion.text = self._secrets.redact_answer(completion.text)
                trace = completion.trace
                trace.failures = call.failures
                trace.bytes_up, trace.bytes_down = call.traffic.up, call.traffic.down
                return completion
            finally:
                self._endpoints.leave(endpoint, time.perf_counter())
                self._places.give_back()
            self._sleep(call, time.perf_counter() + pause)

    def _admit(self, call: Call) -> Endpoint:
        """Wait for the rate limits, a place and a healthy endpoint."""
        now = time.perf_counter()
        if now >= call.deadline:
            self._give_up(call, "deadline", "the deadline (api_deadline) passed before its turn came")
        begin = max(self._requests.reserve(1, now), self._tokens.reserve(call.tokens, now))
        if begin > call.deadline:
            self._requests.give_back(1)
            self._tokens.give_back(call.tokens)
            self._give_up(
                call, "deadline", f"the rate limit ({self._rates}) leaves no turn before the deadline (api_deadline)"
            )
        self._sleep(call, begin)
        while True:
            if not self._places.take(max(0.0, call.deadline - time.perf_counter())):
                self._give_up(call, "deadline", "no place became free (api_concurrency) before the deadline")
            endpoint, again = self._endpoints.choose(time.perf_counter(), call.last)
            if endpoint is not None:
                return endpoint
            self._places.give_back()
            if math.isinf(again):
                raise UserError(f"no API endpoint is left: {self._endpoints.reasons()}", key="api_endpoints")
            if again > call.deadline:
                self._give_up(call, "deadline", "all servers rest until after the deadline (api_deadline)")
            self._sleep(call, again)

    def _attempt(self, endpoint: Endpoint, call: Call, answer: StreamedAnswer) -> Completion:
        call.attempts += 1
        call.last = endpoint
        timeouts = Timeouts(self._timeout, call.deadline)
        try:
            with self._clients[endpoint].post(
                self._targets[endpoint], call.payload(endpoint.model), timeouts, call.traffic
            ) as reply:
                if reply.status != 200:
                    raise of_status(reply.status, reply.headers, _body(reply))
                while not answer.done and (data := reply.read()):
                    answer.feed(data, call.seconds())
                return answer.completion()
        except (OSError, ProtocolError, DeadlineError, InterruptedRequest, ImplausibleNumber) as error:
            raise of_exception(error) from error

    def _failed(self, call: Call, endpoint: Endpoint, failure: AttemptError, delivered: bool) -> float:
        """Record a failed attempt. Returns the seconds until the next one; raises AnswerError or UserError for none."""
        now = time.perf_counter()
        call.failures.append((now - call.started, failure.kind))
        reason = shortened(self._secrets.redact(str(failure)))
        if failure.kind == NO_STREAM and self._endpoints.has_answered(endpoint):
            # It has streamed before: this is temporary.
            failure.outlook = RetryOutlook.TEMPORARY
        if failure.outlook is RetryOutlook.ENDPOINT:
            self._refused(endpoint, failure.kind, reason, delivered)
            return 0.0
        if failure.outlook is RetryOutlook.REQUEST:
            self._endpoints.succeeded(endpoint)
            message = f"the API at {endpoint.server()} refused the request: {reason}"
            kind = ContextWindowError if failure.kind == ContextWindowError.KIND else AnswerError
            raise kind(message, call.failures) from None
        if failure.outlook is RetryOutlook.OVER:
            self._give_up(call, None, reason)
        if failure.outlook is RetryOutlook.TEMPORARY:
            self._endpoints.failed(endpoint)
        pause = self._pause(call, endpoint, failure.wait, now)
        if end := self._end_of_attempts(call, failure, delivered, now + pause):
            self._give_up(call, None, f"{reason} (no further attempt: {end})")
        return pause

    def _refused(self, endpoint: Endpoint, kind: str, reason: str, delivered: bool) -> None:
        """Stop using the endpoint. Raises UserError if no other one can answer this request."""
        reason = _explained(kind, reason, endpoint)
        if self._endpoints.refused(endpoint, reason) and not delivered:
            return
        if not self._several:
            what = "refused the request" if kind.startswith(("status", "quota")) else "cannot be used"
            raise UserError(f"the API at {endpoint.server()} {what}: {reason}") from None
        raise UserError(f"no API endpoint is left: {self._endpoints.reasons()}", key="api_endpoints") from None

    def _pause(self, call: Call, endpoint: Endpoint, wait: float | None, now: float) -> float:
        """Seconds until the next attempt. ``wait``: what the server requested, if anything."""
        if wait is not None:
            self._endpoints.busy(endpoint, now + wait)
        if self._endpoints.other_than(endpoint, now):
            return 0.0
        # Jitter, so that requests that failed together do not retry together.
        if wait is not None:
            return wait * random.uniform(1.0, 1.25)
        return float(min(MAX_DELAY, FIRST_DELAY * 2 ** (call.attempts - 1)) * random.uniform(0.5, 1.0))

    def _end_of_attempts(self, call: Call, failure: AttemptError, delivered: bool, begin: float) -> str:
        """Why there is no further attempt at ``begin``; "" if there is one."""
        if delivered:
            return "a part of the answer has been streamed"
        if call.attempts > self._retries:
            return f"api_retries permits {self._retries} after the first"
        if begin > call.deadline:
            return f"it would begin after the deadline (api_deadline, {call.deadline - call.started:g} s)"
        if failure.outlook is RetryOutlook.TEMPORARY:
            with self._counting:
                # Retries are a share of the requests, so that an outage does not cause a flood.
                if self._retried >= FREE_RETRIES + self._retry_budget * self._begun:
                    return "api_retry_budget is used up"
                self._retried += 1
        return ""

    def _sleep(self, call: Call, until: float) -> None:
        if self._closed.wait(max(0.0, until - time.perf_counter())):
            self._give_up(call, "interrupted", "the request was interrupted")

    def _give_up(self, call: Call, kind: str | None, reason: str) -> NoReturn:
        """Raise AnswerError. ``kind``: a failure in addition to those of the attempts."""
        failures = [*call.failures, *([(call.seconds(), kind)] if kind else [])]
        where = "the API" if self._several or call.last is None else f"the API at {call.last.server()}"
        tries = f"{call.attempts} attempt{'s' if call.attempts != 1 else ''} in {call.seconds():.1f} s"
        raise AnswerError(f"{where} gave no answer after {tries}: {reason}", failures) from None


def _body(reply: Reply) -> bytes:
    """The body of a response without a stream, as far as it arrives."""
    try:
        return reply.read_all(MAX_BODY)
    except (OSError, ProtocolError):
        return b""


def _explained(kind: str, reason: str, endpoint: Endpoint) -> str:
    """The reason why an endpoint is not used any more, with advice."""
    variable = f"the environment variable {endpoint.key_env} (api_key_env)"
    if kind == "status 401" and endpoint.userinfo():
        return f"it does not accept the user name and the password of the URL ({endpoint.option}): {reason}"
    if kind == "status 401":
        what = "does not accept the key" if endpoint.key() else "wants a key: there is none"
        return f"it {what} in {variable}: {reason}"
    if kind == "status 403":
        return f"{reason} (the key in {variable} {'was sent' if endpoint.key() else 'is empty'})"
    if kind in ("status 404", "status 405", NO_STREAM):
        return (
            f"{reason} (is {endpoint.option} right, which mostly ends in /v1, and the model's name {endpoint.model}?)"
        )
    return reason
