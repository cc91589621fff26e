"""Part ``kill``: verifiers and edges that are killed, connections that are cut and paths that fail, at random moments.

An edge decodes without a pause while its verifier is killed (SIGKILL) and started anew, its connection is reset, or
nothing passes the path for a while. Edges of their own processes are killed while another one decodes beside them. Each
answer, and what was shown of it meanwhile, is compared with what the target writes alone.

Times are from the moment at which help is there (the verifier listens, the connection was reset, the path is back) to
the next tokens.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from bench.split.scene import COSTS, SCALE, SPECDEC, Truth, decode, edge, endless_target, questions, truth_of
from ianvs_specdec.backends.child import ServerProcess
from ianvs_specdec.benchmarks.files import positive
from ianvs_specdec.net.link import Path as NetworkPath
from ianvs_specdec.net.link.link import Link

KINDS = ("verifier", "edge", "cut", "outage")
SHORTEST, LONGEST = 0.1, 30.0
"""Seconds of an outage, drawn evenly on a logarithmic scale."""
PAUSES = (0.2, 1.2)
"""Seconds from one disturbance to the next, drawn evenly."""
LIVES = (1.0, 6.0)
"""Seconds that an edge of its own process lives, drawn evenly: until it decodes it imports for some."""
DELAY, TOKENS = "20ms", 200
"""Of the path, one way, and of an answer."""
HEADS = ("kind", "times", "answers", "tokens", "wrong", "breaks", "p50 ms", "p95", "max", "failed")
Row = dict[str, Any]


def add_arguments(add: Any) -> None:
    add("--times", type=positive, default=100, metavar="N", help="of each kind of failure (100)")


class Busy:
    """An edge that decodes one question after the other in a thread, and compares."""

    def __init__(self, llm: Any, truth: Truth) -> None:
        self._llm, self._truth = llm, truth
        self.counts = {"answers": 0, "emitted": 0, "wrong": 0, "breaks": 0}
        self.failed = ""
        self.heard = 0.0
        """When text came last."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Busy:
        self._thread.start()
        self.after(0.0)
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
                self._answer(self.counts["answers"] % len(self._truth.questions))
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"

    def _answer(self, number: int) -> None:
        shown: list[str] = []

        def show(text: str, *_: Any) -> None:
            shown.append(text)
            self.heard = time.perf_counter()

        answer = decode(self._llm, self._truth.questions[number], TOKENS, show)
        right = answer.token_ids == self._truth.answers[number] and "".join(shown) == answer.text
        breaks = answer.trace.split.breaks if answer.trace.split is not None else 0
        for name, count in zip(self.counts, (1, len(answer.token_ids), not right, breaks), strict=True):
            self.counts[name] += count


class Scene:
    """A verifier behind a link, and what can happen to them; each returns the moment at which help is there."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder, self._dice = folder, Random(0)
        self.target = endless_target(folder / "target")
        self.truth = truth_of(self.target, questions(4), TOKENS, folder / "truth.jsonl")
        self._port = "0"
        self._start()
        self._port = self._verifier.address.rpartition(":")[2]
        stack.callback(lambda: self._verifier.close())
        path = NetworkPath.parse({"delay": DELAY})
        self._link = stack.enter_context(Link(to=self._verifier.address, path=path))
        self.address = self._link.address

    def pause(self) -> None:
        time.sleep(self._dice.uniform(*PAUSES))

    def verifier(self) -> float:
        os.kill(self._verifier.pid, signal.SIGKILL)
        self._verifier.close()
        self._start()
        return time.perf_counter()

    def edge(self) -> float:
        out, asked = self._folder / "edge.jsonl", self._folder / "truth.prompts.jsonl"
        named = ("--verifier", self._verifier.address, "--prompts", str(asked), "--out", str(out), "--chat")
        own = ("decode", "--method", "draft_model", "--draft", str(self.target), "--threads", "1")
        command = [*SPECDEC, *own, *named, "--max-new-tokens", str(TOKENS)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as killed:
            time.sleep(self._dice.uniform(*LIVES))
            killed.kill()
        assert killed.returncode == 0 or not out.exists(), "an edge that was killed left half a file"
        return time.perf_counter()

    def cut(self) -> float:
        self._link.cut()
        return time.perf_counter()

    def outage(self) -> float:
        seconds = SHORTEST * (LONGEST / SHORTEST) ** self._dice.random()
        self._link.outage(seconds)
        time.sleep(seconds)
        return time.perf_counter()

    def _start(self) -> None:
        costs = ("--set", f"emulate={COSTS}", "--set", f"emulate_scale={SCALE}", "--set", "threads=1")
        place = ("--model", str(self.target), "--port", self._port, "--grace", "1")
        self._verifier = ServerProcess(["verifier", *place, *costs])


def measure(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    with ExitStack() as stack:
        scene = Scene(folder, stack)
        own = {"method": "draft_model", "draft": str(scene.target), "mode": "split", "outage": "wait"}
        for kind in KINDS:
            disturb: Callable[[], float] = getattr(scene, kind)
            seconds = []
            with edge(scene.target, scene.address, own) as llm, Busy(llm, scene.truth) as busy:
                for _ in range(options.times):
                    scene.pause()
                    seconds.append(busy.after(disturb()))
            yield {"kind": kind, "seconds": seconds, **busy.counts, "failed": busy.failed}


def summary(rows: Sequence[Row]) -> str:
    return f"wrong answers: {sum(row['wrong'] for row in rows)} of {sum(row['answers'] for row in rows)}"


def cells(row: Row) -> list[str]:
    found = sorted(row["seconds"])
    times = median(found), found[int(0.95 * (len(found) - 1))], found[-1]
    counts = (len(found), row["answers"], row["emitted"], row["wrong"], row["breaks"])
    return [row["kind"], *map(str, counts), *(f"{1e3 * seconds:.0f}" for seconds in times), row["failed"]]
