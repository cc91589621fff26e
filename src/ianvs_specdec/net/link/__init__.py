"""Emulation of a network path between real sockets."""

from ianvs_specdec.net.link.path import Path

__all__ = ["Path"]
