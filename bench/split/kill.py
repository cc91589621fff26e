"""Part ``kill``: verifiers and edges that are killed, connections that are cut and paths that fail, at random moments.

An edge decodes without a pause while its verifier is killed (SIGKILL) and started anew, its connection is reset, or
nothing passes the path for a while. Edges of their own processes are killed while another one decodes beside them, and
asked again. Each answer, and what was shown of it meanwhile, is compared with what the target writes alone.

Times are from the moment at which help is there (the verifier listens, the connection was reset, the path is back) to
the next tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from bench.split.scene import (
    COSTS,
    PATIENCE,
    Client,
    decoded,
    endless_target,
    free_port,
    process,
    random_prompts,
    relay,
    verifier_command,
)
from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Access

PARTS = ("verifier", "edge", "cut", "outage")
SHORTEST, LONGEST = 0.1, 30.0
"""Seconds of an outage, drawn evenly on a logarithmic scale."""
PAUSES = (0.2, 1.2)
"""Seconds from one disturbance to the next, drawn evenly."""


def add_arguments(add: Any) -> None:
    add("--kinds", type=lambda text: text.split(","), default=list(PARTS), metavar="K,K", help=f"({','.join(PARTS)})")
    add("--times", type=int, default=100, metavar="N", help="of each kind (100)")
    add("--outage-scale", type=float, default=1.0, metavar="X", help="outages take X times 0.1 to 30 s (1)")
    add("--delay", default="20ms", metavar="TIME", help="of the path, one way (20ms)")
    add("--scale", type=float, default=2.0, metavar="X", help="by which the cost table's times are stretched (2)")
    add("--tokens", type=int, default=200, metavar="N", help="of an answer (200)")
    add("--seed", type=int, default=0, metavar="N")


class Spawner:
    """Starts processes of `specdec` that need no time for imports."""

    def __init__(self, running: subprocess.Popen[str], folder: Path) -> None:
        self._running, self._folder, self._count = running, folder, 0
        self._children: dict[int, Path] = {}

    def start(self, *arguments: str) -> int:
        self._count += 1
        told = self._folder / f"child-{self._count}.out"
        child = int(self._ask([str(told), *arguments]))
        self._children[child] = told
        return child

    def said(self, child: int, text: str) -> None:
        """Wait until the child has printed ``text``."""
        deadline = time.monotonic() + PATIENCE
        while text not in (self._children[child].read_text() if self._children[child].exists() else ""):
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {child} did not say {text!r}")
            time.sleep(0.005)

    def kill(self, child: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        self.wait(child)

    def wait(self, child: int) -> None:
        self._ask(["reap", child])
        del self._children[child]

    def close(self) -> None:
        for child in list(self._children):
            self.kill(child)

    def _ask(self, words: list[Any]) -> str:
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        self._running.stdin.write(json.dumps(words) + "\n")
        self._running.stdin.flush()
        return self._running.stdout.readline()


class Busy:
    """An edge that decodes one prompt after the other in a thread, and compares."""

    def __init__(self, client: Client, prompts: list[list[int]], expected: dict[int, list[int]], tokens: int) -> None:
        self._client, self._prompts, self._expected, self._tokens = client, prompts, expected, tokens
        self.answers = self.wrong = self.breaks = self.emitted = 0
        self.failed = ""
        self.heard = 0.0
        """When tokens came last."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Busy:
        self._thread.start()
        while not self.heard and self._thread.is_alive():
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def after(self, moment: float) -> float:
        """Seconds from ``moment`` to the next tokens."""
        while self.heard <= moment and self._thread.is_alive():
            time.sleep(0.001)
        return self.heard - moment

    def _work(self) -> None:
        try:
            while not self._ended.is_set():
                number = self.answers % len(self._prompts)
                prompt, shown = self._prompts[number], []

                def show(tokens: list[int], shown: list[int] = shown) -> None:
                    shown += tokens
                    self.heard = time.perf_counter()

                answer = self._client.decode(prompt, self._tokens, on_tokens=show)
                self.answers += 1
                self.emitted += len(shown)
                self.breaks += answer.breaks
                self.wrong += not (prompt + answer.token_ids == prompt + shown == self._expected[number])
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    dice = Random(options.seed)
    target, prompts = endless_target(folder / "target"), random_prompts(8)
    expected = decoded(target, prompts, options.tokens, folder / "truth.jsonl")
    settings = {"emulate": str(COSTS), "emulate_scale": options.scale}
    port = free_port()
    command = verifier_command(folder, target, settings, port)[3:]
    rows = []
    with _spawner(folder) as spawner, relay(f"127.0.0.1:{port}", {"delay": options.delay}) as link:
        running = [spawner.start(*command)]
        spawner.said(running[0], "listening")

        def disturb_verifier() -> float:
            spawner.kill(running.pop())
            running.append(spawner.start(*command))
            spawner.said(running[0], "listening")
            return time.perf_counter()

        def disturb_edge() -> float:
            file = folder / "edge.jsonl"
            asked = folder / "truth.prompts.jsonl"
            named = ("--verifier", f"127.0.0.1:{port}", "--prompts", str(asked), "--out", str(file))
            own = ("decode", "--method", "draft_model", "--draft", str(target), "--threads", "1")
            child = spawner.start(*own, *named, "--max-new-tokens", str(options.tokens))
            time.sleep(dice.uniform(0.1, 1.5))
            spawner.kill(child)
            assert not file.exists(), "an edge that was killed left half a file"
            return time.perf_counter()

        def disturb_path() -> float:
            seconds = options.outage_scale * SHORTEST * (LONGEST / SHORTEST) ** dice.random()
            link.outage(seconds)
            time.sleep(seconds)
            return time.perf_counter()

        def disturb_connection() -> float:
            link.cut()
            return time.perf_counter()

        disturbances: dict[str, Callable[[], float]] = dict(
            zip(PARTS, (disturb_verifier, disturb_edge, disturb_connection, disturb_path), strict=True)
        )
        for kind in options.kinds:
            drafter = drafters.create("draft_model", {"draft": str(target)})
            with (
                Client(Access(link.address), drafter, None, "split") as client,
                Busy(client, prompts, expected, options.tokens) as busy,
            ):
                seconds = []
                for _ in range(options.times):
                    time.sleep(dice.uniform(*PAUSES))
                    seconds.append(busy.after(disturbances[kind]()))
            rows.append({"kind": kind, "times": options.times, "seconds": seconds, **_counts(busy)})
            print(_line(rows[-1]), flush=True)
        spawner.close()
    return {"rows": rows}


@contextmanager
def _spawner(folder: Path) -> Iterator[Spawner]:
    with process((sys.executable, "-m", "bench.split.spawner")) as running:
        spawner = Spawner(running, folder)
        try:
            yield spawner
        finally:
            spawner.close()


def _counts(busy: Busy) -> dict[str, Any]:
    return {name: getattr(busy, name) for name in ("answers", "emitted", "wrong", "breaks", "failed")}


def _line(row: dict[str, Any]) -> str:
    found = sorted(row["seconds"])
    times = f"{1e3 * median(found):>9.0f}{1e3 * found[int(0.95 * (len(found) - 1))]:>8.0f}{1e3 * found[-1]:>8.0f}"
    head = (
        f"{row['kind']:<10}{row['times']:>6}{row['answers']:>8}{row['emitted']:>8}{row['wrong']:>7}{row['breaks']:>7}"
    )
    return f"{head}{times}  {row['failed']}"


def table(report: dict[str, Any]) -> str:
    heads = (
        f"{'kind':<10}{'times':>6}{'answers':>8}{'tokens':>8}{'wrong':>7}{'breaks':>7}{'p50 ms':>9}{'p95':>8}{'max':>8}"
    )
    return "\n".join([heads, *map(_line, report["rows"])])
