"""Packets between two virtual devices, queued, lost and delayed one by one: a path under the kernel's own TCP.

``python -m bench.link_packets FILE`` takes a path's file as ``specdec link`` does, makes two devices (TUN), prints
their names, and passes packets between them until it is ended. What is lost is lost, and what finds the queue full is
dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pathlib
import struct
import sys
from collections import deque
from random import Random

from ianvs_specdec.net.link import Path
from ianvs_specdec.net.link.clock import Clock

TUNNEL = "/dev/net/tun"
_SET = 0x400454CA
"""TUNSETIFF of linux/if_tun.h."""
_PLAIN_PACKETS = 0x1001
"""IFF_TUN without a header of its own (IFF_NO_PI)."""
LONGEST = 1 << 16
AT_ONCE = 16
"""Packets of one direction before the other has its turn."""


class Way:
    """One direction."""

    def __init__(self, clock: Clock, path: Path, rate: float | None, ends: tuple[int, int], name: str) -> None:
        self._clock, self._path, self._ends = clock, path, ends
        self._seconds = 0.0 if rate is None else 8 / rate
        self._chance = Random(f"{path.seed} {name}")
        self._free = 0.0
        self._flying: deque[tuple[float, bytes]] = deque()

    def read(self) -> None:
        now = self._clock.now()
        for _ in range(AT_ONCE):
            try:
                packet = os.read(self._ends[0], LONGEST)
            except BlockingIOError:
                return
            if self._free - now > self._path.queue:
                continue
            self._free = max(self._free, now) + len(packet) * self._seconds
            if self._chance.random() < self._path.loss:
                continue
            self._flying.append((self._free + self._path.delay, packet))
            if len(self._flying) == 1:
                self._clock.at(self._flying[0][0], self._write)

    def _write(self) -> None:
        while self._flying and self._flying[0][0] <= self._clock.now():
            # The device is down at the end.
            with contextlib.suppress(OSError):
                os.write(self._ends[1], self._flying[0][1])
            self._flying.popleft()
        if self._flying:
            self._clock.at(self._flying[0][0], self._write)


def device() -> tuple[int, str]:
    """File and name of a new one."""
    file = os.open(TUNNEL, os.O_RDWR | os.O_NONBLOCK)
    asked = struct.pack("16sH22x", b"specdec%d", _PLAIN_PACKETS)
    return file, fcntl.ioctl(file, _SET, asked)[:16].rstrip(b"\0").decode()


async def main(file: str) -> None:
    path = Path.parse(json.loads(pathlib.Path(file).read_text(encoding="utf-8")))
    loop = asyncio.get_running_loop()
    clock = Clock(loop)
    (edge, first), (cloud, second) = device(), device()
    loop.add_reader(edge, Way(clock, path, path.up, (edge, cloud), "up").read)
    loop.add_reader(cloud, Way(clock, path, path.down, (cloud, edge), "down").read)
    print(first, second, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
