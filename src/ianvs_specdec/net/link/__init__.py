"""The network path between edge and cloud, emulated between real sockets."""

from ianvs_specdec.net.link.path import Path
from ianvs_specdec.net.link.thread import Link

__all__ = ["Link", "Path"]
