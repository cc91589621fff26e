"""Servers: ``specdec serve`` with one policy, started on the loopback interface, or a running server."""

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
"""The model's name on a server that is started here."""
ASK_SECONDS = 5.0
"""For a server's model list and metrics, which cost it nothing; a busy machine takes its time."""
PATIENCE, PAUSE = 15.0, 0.5
"""Seconds until a server that does not answer counts as gone, and between two attempts."""
PREFIX = "specdec_"
LARGEST_ANSWER = 16 << 20


class ServerDied(Exception):
    """The server ended, or cannot be reached any more. ``str()`` says which and why."""


class Server:
    """One that answers under ``url`` (without ``/v1``) to the name ``model``."""

    def __init__(self, url: str, model: str, key: str = "") -> None:
        self.url, self.model, self.key = url.rstrip("/").removesuffix("/v1"), model, key
        local = self.url.partition("://")[2].startswith(("127.0.0.1", "localhost", "[::1]"))
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if local else []))

    def check(self) -> None:
        """Raise ServerDied unless it answers within ``PATIENCE``: one that has much to do takes its time."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.models()
                return
            except ServerDied:
                if time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE)

    def check_process(self) -> None:
        """Raise ServerDied where its process has ended, which is not known of one that was not started here."""

    def models(self) -> list[str]:
        """The names that it knows. Raises ServerDied."""
        try:
            data = json.loads(self._get("/v1/models"))["data"]
            return [str(entry["id"]) for entry in data]
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ServerDied(f"the server at {self.url} cannot be reached: {reason}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise ServerDied(f"the server at {self.url} has no list of models at /v1/models") from error

    def metrics(self) -> dict[str, float] | None:
        """Our server's metrics by name without prefix, with labels (``requests_total.completed``); None of another."""
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
        """Nothing was started."""

    def _get(self, path: str) -> bytes:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request = urllib.request.Request(self.url + path, headers=headers)
        with self._opener.open(request, timeout=ASK_SECONDS) as reply:
            body: bytes = reply.read(LARGEST_ANSWER)
            return body


class Serving(Server):
    """``specdec serve`` with these arguments, in a process of its own. Raises UserError where it does not start."""

    def __init__(self, arguments: Sequence[str], which: str) -> None:
        """Error messages call it ``the server {which}``."""
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


def started(plan: SweepPlan, policy: str) -> Server:
    """A server with a policy."""
    return Serving(arguments(plan, policy), f"for the policy {policy}")


def arguments(plan: SweepPlan, policy: str) -> list[str]:
    """How ``specdec serve`` is called for a policy."""
    chosen: Mapping[str, Any] = {
        "backend": plan.backend or None,
        "concurrency": plan.concurrency,
        "queue": plan.queue,
        "deadline": plan.timeout,
    }
    found = ["--settings", plan.settings, "--length", policy]
    for name, value in chosen.items():
        found += [] if value is None else [f"--{name}", f"{value}"]
    for name, value in plan.set.items():
        # JSON is YAML, and has a form for every value in one line.
        found += ["--set", f"{name}={json.dumps(value)}"]
    return found
