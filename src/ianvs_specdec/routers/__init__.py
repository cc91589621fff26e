"""Routers (hard example mining): which queries go to the cloud. One file per router.

A router gives each query a score, its estimate of the probability that the edge's answer will not do; the query is hard
when the score reaches the threshold.
"""

from ianvs_specdec.routers.base import Router
from ianvs_specdec.routers.cloud_only import CloudOnly
from ianvs_specdec.routers.edge_only import EdgeOnly
from ianvs_specdec.routers.oracle import OracleRouter
from ianvs_specdec.routers.random_router import RandomRouter

__all__ = ["CloudOnly", "EdgeOnly", "OracleRouter", "RandomRouter", "Router"]
