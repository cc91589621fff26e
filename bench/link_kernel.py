"""The kernel's own TCP over the same path: two network namespaces, and between them netem, or packets passed one by one
where the kernel has no netem.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.link_packets import TUNNEL
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.net.link import Path as NetworkPath
from ianvs_specdec.net.link.line import HEADERS, SEGMENT

NETEM, PACKETS = "netem", "packets"
HOSTS = ("10.213.77.1", "10.213.77.2")
"""Addresses in namespaces of their own, where they meet no others."""
SETTINGS = ("net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_no_metrics_save=1")
"""The congestion control that the relay has, too; and no connection learns from those before."""
FRAME = SEGMENT + HEADERS + 14
"""Bytes of a full segment in a queue, with its Ethernet header."""
DEEPEST = 100_000
"""Packets: netem counts those in flight in its queue."""
TOLD = {
    NETEM: "kernel: its TCP (Reno) over netem",
    PACKETS: "kernel: its TCP (Reno) over packets that bench.link_packets delays and loses, since it has no netem",
}


def offered() -> str:
    """NETEM or PACKETS. Raises UserError where there is nothing to compare with."""
    if not (shutil.which("ip") and shutil.which("tc")):
        raise UserError("--kernel needs the commands ip and tc (package iproute2)")
    if os.geteuid():
        raise UserError("--kernel needs root: it makes network namespaces")
    name = f"specdec-try-{os.getpid()}"
    _run("ip", "netns", "add", name)
    try:
        command = ["ip", "netns", "exec", name, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return NETEM
    finally:
        _run("ip", "netns", "del", name)
    if not os.path.exists(TUNNEL):
        raise UserError(f"--kernel: this kernel has neither netem (sch_netem) nor {TUNNEL}")
    return PACKETS


class Kernel:
    """Two namespaces with a path between them, for as long as it is entered. ``here`` and ``there`` are what a command
    in the client's and in the server's namespace begins with; ``host`` is the server's address.
    """

    def __init__(self, path: NetworkPath, kind: str, options: dict[str, Any]) -> None:
        """``options``: the path as a file has it. Its jitter is left out: netem would reorder."""
        self._path, self._kind, self._options = replace(path, jitter=0.0), kind, {**options, "jitter": "0ms"}
        self._names = [f"specdec-{side}-{os.getpid()}" for side in ("edge", "cloud")]
        self.here, self.there = (["ip", "netns", "exec", name] for name in self._names)
        self.host = HOSTS[1]

    def __enter__(self) -> Kernel:
        with ExitStack() as undone:
            for name in self._names:
                _run("ip", "netns", "add", name)
                undone.callback(_run, "ip", "netns", "del", name)
            if self._kind == NETEM:
                ends = [["name", "path0", "netns", name] for name in self._names]
                _run("ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1])
            else:
                self._pass_packets(undone)
            for name, host, rate in zip(self._names, HOSTS, (self._path.up, self._path.down), strict=True):
                inside = ["ip", "netns", "exec", name]
                _run(*inside, "ip", "addr", "add", f"{host}/30", "dev", "path0")
                # Packets as on the wire: offloading would lose and delay dozens of segments as one.
                _run(*inside, "ip", "link", "set", "path0", "gso_max_segs", "1", "up")
                _run(*inside, "sysctl", "-q", "-w", *SETTINGS)
                if self._kind == NETEM:
                    _run(*inside, "tc", "qdisc", "add", "dev", "path0", "root", *self.netem(rate))
            self._undone = undone.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._undone.close()

    def netem(self, rate: float | None) -> list[str]:
        """The discipline of one direction, with ``rate`` bits a second."""
        held = 0.0 if rate is None else rate / 8 * (max(self._path.queue, 80 * FRAME / rate) + self._path.delay)
        limit = DEEPEST if rate is None else math.ceil(held / FRAME)
        options = ["netem", "limit", str(limit), "delay", f"{1e6 * self._path.delay:.0f}us"]
        options += ["loss", f"{100 * self._path.loss:g}%"] if self._path.loss else []
        return options + ([] if rate is None else ["rate", f"{rate:.0f}bit"])

    def _pass_packets(self, undone: ExitStack) -> None:
        file = Path(undone.enter_context(tempfile.TemporaryDirectory())) / "path.json"
        file.write_text(json.dumps(self._options), encoding="utf-8")
        command = [sys.executable, "-m", "bench.link_packets", str(file)]
        process = undone.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        undone.callback(process.kill)
        assert process.stdout is not None
        devices = process.stdout.readline().split()
        if len(devices) != len(self._names):
            raise UserError(f"--kernel: no devices can be made with {TUNNEL}")
        for device, name in zip(devices, self._names, strict=True):
            _run("ip", "link", "set", device, "netns", name, "name", "path0")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"--kernel: {' '.join(command)}: {done.stderr.strip()}")
