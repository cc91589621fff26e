"""Servers under load: ``specdec serve`` with one policy, started here, or a running server."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from ianvs_specdec.backends.child import ServerProcess
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.plan import SweepPlan

NAME = "load"
"""Name of the model on servers started here."""
REQUEST_SECONDS = 5.0
"""Timeout for models and metrics."""
DEAD_SECONDS, RETRY_SECONDS = 15.0, 0.5
"""Time until a server without an answer counts as dead, and between two attempts."""
PREFIX = "specdec_"
MAX_BODY = 16 << 20


class ServerDied(Exception):
    """The server has ended or cannot be reached."""


class Server:
    """A running server at ``url``, where the model has the name ``model``."""

    def __init__(self, url: str, model: str, key: str = "") -> None:
        self.url, self.model, self.key = url.rstrip("/").removesuffix("/v1"), model, key
        local = self.url.partition("://")[2].startswith(("127.0.0.1", "localhost", "[::1]"))
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))

    def check(self) -> None:
        """Raise ServerDied unless it answers within ``DEAD_SECONDS``."""
        deadline = time.monotonic() + DEAD_SECONDS
        while True:
            try:
                self.models()
                return
            except ServerDied:
                if time.monotonic() > deadline:
                    raise
            time.sleep(RETRY_SECONDS)

    def check_process(self) -> None:
        """Raise ServerDied if its process, started here, has ended."""

    def models(self) -> list[str]:
        """Names of its models. Raises ServerDied."""
        try:
            data = json.loads(self._get("/v1/models"))["data"]
            return [str(entry["id"]) for entry in data]
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ServerDied(f"the server at {self.url} cannot be reached: {reason}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ServerDied(f"the server at {self.url} has no list of models at /v1/models") from error

    def metrics(self) -> dict[str, float] | None:
        """Metrics of our server by name and labels, such as ``requests_total.completed``; None for other servers."""
        from prometheus_client.parser import text_string_to_metric_families

        try:
            text = self._get("/metrics").decode("utf-8", "replace")
            samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        except (OSError, http.client.HTTPException, ValueError):
            return None
        kept = [sample for sample in samples if sample.name.startswith(PREFIX)]
        return {
            ".".join([sample.name.removeprefix(PREFIX), *sample.labels.values()]): sample.value
            for sample in kept
            if not sample.name.endswith(("_bucket", "_created"))
        } or None

    def stop(self) -> None:
        """Stop a server that was started here."""

    def _get(self, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request = urllib.request.Request(self.url + path, headers=headers)
        with self._opener.open(request, timeout=REQUEST_SECONDS) as reply:
            body: bytes = reply.read(MAX_BODY)
            return body


class StartedServer(Server):
    """``specdec serve`` in a subprocess, called ``the server {which}`` in errors. Raises UserError if it fails."""

    def __init__(self, arguments: Sequence[str], which: str) -> None:
        self._which = which
        try:
            self._child = ServerProcess(["serve", "--name", NAME, "--port", "0", *arguments])
        except UserError as error:
            raise UserError(f"the server {which} did not start: {error}") from error
        self.pid = self._child.pid
        super().__init__(self._child.address, NAME)

    def check(self) -> None:
        self.check_process()

    def check_process(self) -> None:
        try:
            self._child.check()
        except UserError as error:
            raise ServerDied(f"the server {self._which} has ended: {error}") from error

    def stop(self) -> None:
        self._child.close()


def start_server(plan: SweepPlan, policy: str) -> Server:
    return StartedServer(arguments(plan, policy), f"for the policy {policy}")


def arguments(plan: SweepPlan, policy: str) -> list[str]:
    """Arguments of ``specdec serve`` for a policy."""
    options: Mapping[str, Any] = {
        "backend": plan.backend or None,
        "concurrency": plan.concurrency,
        "queue": plan.queue,
        "deadline": plan.timeout,
    }
    found = ["--settings", plan.settings, "--length", policy]
    for name, value in options.items():
        found += [] if value is None else [f"--{name}", f"{value}"]
    for name, value in plan.set.items():
        # JSON is YAML on one line.
        found += ["--set", f"{name}={json.dumps(value)}"]
    return found
