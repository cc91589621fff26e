"""``python -m bench.soak --minutes 10``: endurance test of ``specdec serve``.

Starts the server on the loopback interface with ``--at-once`` clients, which send requests without pause: short and
long, greedy and sampled, streamed and not. A fifth of them disconnect early. Prints the clients' counts and the
server's resident memory ten times.

For refusals, use more clients than the server admits: ``--at-once 400`` (64 run, 256 wait).

The exit code is 1 if an answer was lost or incomplete, the server counted other outcomes than its clients, a sequence
was leaked, or memory grew in the second half of the time (the first half is the warm-up).

Arguments after ``--`` are passed to ``specdec serve``; by default the example's cloud model drafts with EAGLE.
"""

from __future__ import annotations

import argparse
import collections
import http.client
import json
import random
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import closing

import psutil

from bench.command import EXAMPLE
from ianvs_specdec.benchmarks.files import positive
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.load.servers import StartedServer

SETTINGS = EXAMPLE / "testalgorithms" / "query-routing" / "cloud_settings.yaml"
EAGLE = ("--settings", str(SETTINGS), "--backend", "EagleSpecDec")
LEAVING = 0.2
"""Share of requests that disconnect early."""
REFUSED = 0.2
"""Seconds that a client waits after a refusal."""
LONGEST = 600.0
"""Seconds after which an answer counts as lost."""
GROWTH = 0.05
"""Tolerance for resident memory, since allocators keep freed memory."""
LINES = 10
CHAT = "/v1/chat/completions"


class Clients:
    """Threads that send requests until they are stopped."""

    def __init__(self, server: StartedServer, number: int, tokens: int) -> None:
        self._server, self._tokens = server, tokens
        self._mutex, self._stop = threading.Lock(), threading.Event()
        self.counts: collections.Counter[str] = collections.Counter()
        self.faults: collections.Counter[str] = collections.Counter()
        self._threads = [threading.Thread(target=self._ask_on, args=(random.Random(n),)) for n in range(number)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Wait for the last answers."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, chance: random.Random) -> None:
        while not self._stop.is_set():
            try:
                outcome = self._ask(chance)
            except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
                with self._mutex:
                    self.faults[f"{type(error).__name__}: {error}"[:200]] += 1
                outcome = "lost"
            with self._mutex:
                self.counts[outcome] += 1
            if outcome == "queue full":
                self._stop.wait(REFUSED)

    def _ask(self, chance: random.Random) -> str:
        leaves, streamed = chance.random() < LEAVING, chance.random() < 0.5
        question = f"Question {chance.randrange(10_000)}: what is known of it? " * chance.choice((1, 1, 4, 40))
        manner = chance.choice(({}, {"temperature": 0.8, "seed": chance.randrange(1000)}, {"stop": ["the"]}))
        body = {
            "model": self._server.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": chance.randrange(1, self._tokens),
            **({"stream": True, "stream_options": {"include_usage": True}} if streamed else {}),
            **manner,
        }
        address = self._server.url.removeprefix("http://")
        with closing(http.client.HTTPConnection(address, timeout=LONGEST)) as connection:
            connection.request("POST", CHAT, json.dumps(body), {"Content-Type": "application/json"})
            if leaves:
                # In the queue, during the prefill, or between two tokens.
                time.sleep(chance.random() ** 4)
                return "left"
            return _received(connection.getresponse(), streamed)


def _received(response: http.client.HTTPResponse, streamed: bool) -> str:
    """The outcome of a request. Raises ValueError or LookupError for an incomplete answer."""
    text = response.read().decode()
    if response.status == 429:
        return "queue full"
    if response.status != 200:
        raise ValueError(f"status {response.status}: {text[:100]}")
    if not streamed:
        ended, usage = json.loads(text)["choices"][0]["finish_reason"], json.loads(text)["usage"]
    else:
        *events, done = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        if done != "[DONE]":
            raise ValueError(f"a stream ended with {done[:100]}")
        chunks = [json.loads(event) for event in events]
        ended, usage = chunks[-2]["choices"][0]["finish_reason"], chunks[-1]["usage"]
    if ended not in ("stop", "length") or not usage["completion_tokens"]:
        raise ValueError(f"an answer of {usage['completion_tokens']} tokens ended with {ended!r}")
    return "answered"


def main(argv: list[str] | None = None) -> int:
    options = _arguments(argv)
    try:
        server = StartedServer(options.serve or EAGLE, "under test")
    except UserError as error:
        print(f"bench.soak: {error}", file=sys.stderr)
        return 2
    try:
        wrong = _soaked(server, options)
    finally:
        server.stop()
    print("\n".join(wrong) or "nothing lost, every sequence freed, memory flat")
    return 1 if wrong else 0


def _soaked(server: StartedServer, options: argparse.Namespace) -> list[str]:
    """Run the test; returns the errors."""
    process, memory = psutil.Process(server.pid), list[float]()
    print(f"{options.at_once} clients for {options.minutes:g} minutes, resident memory {_megabytes(process):.0f} MB")
    clients = Clients(server, options.at_once, options.tokens)
    began = time.monotonic()
    for number in range(1, LINES + 1):
        time.sleep(max(0.0, began + number * 60 * options.minutes / LINES - time.monotonic()))
        memory.append(_megabytes(process))
        print(f"{time.monotonic() - began:6.0f} s  {memory[-1]:7.1f} MB  {_line(clients.counts)}", flush=True)
    clients.end()
    wrong = [*_left(server), *_miscounted(server.metrics() or {}, clients.counts)]
    wrong += [f"{number} times: {fault}" for fault, number in clients.faults.items()]
    middle, end = memory[LINES // 2 - 1], memory[-1]
    if end > middle * (1 + GROWTH):
        wrong.append(f"the memory grew from {middle:.0f} to {end:.0f} MB")
    tokens = (server.metrics() or {}).get("completion_tokens_total", 0)
    print(f"in all  {_line(clients.counts)}, {tokens:.0f} tokens")
    return wrong


def _megabytes(process: psutil.Process) -> float:
    return float(process.memory_info().rss / 1e6)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=10.0, metavar="M")
    add("--at-once", type=positive, default=64, metavar="N", help="clients (64)")
    add("--tokens", type=int, default=200, metavar="N", help="of the longest answer (200)")
    add("serve", nargs="*", metavar="-- OPTIONS", help="of specdec serve")
    options = parser.parse_args(argv)
    if options.minutes <= 0 or options.tokens < 2:
        parser.error("--minutes must be more than 0, --tokens more than 1")
    return options


def _line(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in ("answered", "left", "queue full", "lost"))


def _left(server: StartedServer) -> list[str]:
    """Leaked sequences and requests, some seconds after the last client has ended."""
    waiting = ("in_flight", "queue_length", "sequences", "sequence_memory_bytes")
    for _ in range(100):
        metrics = server.metrics()
        found = {name: value for name, value in (metrics or {}).items() if name in waiting and value}
        if metrics is not None and not found:
            return []
        time.sleep(0.1)
    return [f"the server still has {found}" if found else "the server does not answer GET /metrics"]


def _miscounted(metrics: Mapping[str, float], counts: Mapping[str, int]) -> list[str]:
    """Compare the outcomes in a server's ``metrics`` with its clients' counts."""
    outcomes = {
        name.removeprefix("requests_total."): value
        for name, value in metrics.items()
        if name.startswith("requests_total.") and value
    }
    completed, refused = outcomes.get("completed", 0), outcomes.get("queue_full", 0)
    # A disconnected client may have been answered or refused just before.
    of_left = completed - counts["answered"], refused - counts["queue full"], outcomes.get("disconnected", 0)
    if min(of_left) >= 0 and sum(of_left) == counts["left"]:
        return []
    return [f"the server counted {outcomes}"]


if __name__ == "__main__":
    sys.exit(main())
