"""Linux's own emulation of a path: two network namespaces with a queueing discipline each, and a cable between them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from types import TracebackType

from ianvs_specdec.errors import UserError
from ianvs_specdec.link import Path
from ianvs_specdec.link.line import HEADERS, SEGMENT

NETEM, TBF = "netem", "tbf"
HOSTS = ("10.213.77.1", "10.213.77.2")
"""Addresses in namespaces of their own, where they meet no others."""
CONTROL = "reno"
"""The congestion control that the relay has, too."""
FRAME = SEGMENT + HEADERS + 14
"""Bytes of a full segment in a queue, with its Ethernet header."""
DEEPEST = 100_000
"""Packets: netem counts those in flight in its queue."""


@dataclass(frozen=True)
class Offered:
    """What this machine's kernel can emulate, by which discipline, and a line that says so."""

    discipline: str
    reason: str

    def reduced(self, path: Path) -> Path:
        """What can be compared of a path."""
        if self.discipline == NETEM:
            return replace(path, jitter=0.0, preset="none")
        return Path(up=path.up, down=path.down, queue=path.queue)


def offered() -> Offered:
    """Raises UserError where there is nothing to compare with."""
    if not (shutil.which("ip") and shutil.which("tc")):
        raise UserError("--kernel needs the commands ip and tc (package iproute2)")
    if os.geteuid():
        raise UserError("--kernel needs root: it makes network namespaces")
    name = f"specdec-try-{os.getpid()}"
    _run("ip", "netns", "add", name)
    try:
        for discipline, options in ((NETEM, ["delay", "1ms"]), (TBF, ["rate", "1mbit", "burst", "2k", "limit", "9k"])):
            command = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", discipline, *options]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                break
        else:
            raise UserError("--kernel: this kernel has neither netem (sch_netem) nor tbf (sch_tbf)")
    finally:
        _run("ip", "netns", "del", name)
    if discipline == NETEM:
        return Offered(NETEM, f"kernel: netem, {CONTROL}")
    return Offered(TBF, f"kernel: tbf, {CONTROL}. It has no netem (sch_netem): bandwidth and queue are compared alone")


class Kernel:
    """Two namespaces with a path between them, for as long as it is entered. ``here`` and ``there`` are what a command
    in the client's and in the server's namespace begins with; ``host`` is the server's address.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = [f"specdec-{side}-{os.getpid()}" for side in ("edge", "cloud")]
        self.here, self.there = (["ip", "netns", "exec", name] for name in self._names)
        self.host = HOSTS[1]

    def __enter__(self) -> Kernel:
        can = offered()
        for name in self._names:
            _run("ip", "netns", "add", name)
        try:
            ends = [["name", "path0", "netns", name] for name in self._names]
            _run("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
            rates = (self._path.up, self._path.down)
            for name, host, rate in zip(self._names, HOSTS, rates, strict=True):
                inside = ["ip", "netns", "exec", name]
                _run(*inside, "ip", "addr", "add", f"{host}/30", "dev", "path0")
                # Packets as on the wire: offloading would lose and delay dozens of segments as one.
                _run(*inside, "ip", "link", "set", "path0", "gso_max_segs", "1", "up")
                _run(*inside, "sysctl", "-q", "-w", f"net.ipv4.tcp_congestion_control={CONTROL}")
                if options := self._discipline(can.discipline, rate):
                    _run(*inside, "tc", "qdisc", "add", "dev", "path0", "root", *options)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _discipline(self, discipline: str, rate: float | None) -> list[str]:
        queue = 0 if rate is None else max(10 * FRAME, int(rate / 8 * self._path.queue))
        if discipline == TBF:
            if rate is None:
                return []
            burst = max(2 * FRAME, int(rate / 8 * 0.001))
            return [TBF, "rate", f"{rate:.0f}bit", "burst", str(burst), "limit", str(queue)]
        flight = 0 if rate is None else rate / 8 * self._path.delay / FRAME
        limit = DEEPEST if rate is None else int(queue / FRAME + flight) + 1
        options = [NETEM, "limit", str(limit), "delay", f"{1e6 * self._path.delay:.0f}us"]
        options += ["loss", f"{100 * self._path.loss:g}%"] if self._path.loss else []
        return options + ([] if rate is None else ["rate", f"{rate:.0f}bit"])

    def _remove(self) -> None:
        for name in self._names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"--kernel: {' '.join(command)}: {done.stderr.strip()}")
