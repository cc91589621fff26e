"""The network path between edge and cloud, emulated between real sockets."""

from ianvs_specdec.net.link.path import Path

__all__ = ["Path"]
