"""Servers: ``specdec serve`` with one policy, started on the loopback interface, or a running server."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.plan import SweepPlan
from ianvs_specdec.load.processes import end, last_words

NAME = "load"
"""The model's name on a server that is started here."""
READY = "listening on "
START_SECONDS = 600.0
"""For loading a model: large ones are read from slow disks."""
STOP_SECONDS = 20.0
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
        """What our server counts, by name without its prefix, requests by outcome (``requests_total.completed``); None
        of another server, or where it does not answer now."""
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
    """``specdec serve`` with these arguments, in a process of its own. What it prints goes into ``folder``; error
    messages call it ``the server {which}``."""

    def __init__(self, arguments: Sequence[str], which: str, folder: Path) -> None:
        self._which = which
        self._out, self._err = folder / "server.out", folder / "server.err"
        folder.mkdir(parents=True, exist_ok=True)
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ianvs_specdec", "serve", "--name", NAME, "--port", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.pid = self._process.pid
        try:
            super().__init__(self._wait(), NAME)
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> str:
        """The URL, once it listens."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            text = self._out.read_text(encoding="utf-8", errors="replace")
            if READY in text and text.endswith("\n"):
                return text.partition(READY)[2].split()[0]
            if self._process.poll() is not None:
                why = last_words(self._err).removeprefix("specdec serve: ")
                raise UserError(f"the server {self._which} did not start: {why}")
            time.sleep(0.05)
        raise UserError(f"the server {self._which} was not ready after {START_SECONDS:g} s")

    def check(self) -> None:
        self.check_process()

    def check_process(self) -> None:
        if (code := self._process.poll()) is not None:
            ended = f"by signal {-code}" if code < 0 else f"with exit code {code}"
            words = last_words(self._err)
            raise ServerDied(f"the server {self._which} ended {ended}{f': {words}' if words else ''}")

    def stop(self) -> None:
        end(self._process, STOP_SECONDS)


class Started(Serving):
    """One that serves with a policy."""

    def __init__(self, plan: SweepPlan, policy: str, folder: Path) -> None:
        super().__init__(arguments(plan, policy), f"for the policy {policy}", folder)


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
