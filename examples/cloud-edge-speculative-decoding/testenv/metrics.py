"""Registers every column of the leaderboard under its name, for testenv.yaml to choose from: docs/measuring.md lists
them.
"""

from ianvs_specdec.report.metrics import METRICS
from sedna.common.class_factory import ClassFactory, ClassType

for name, metric in METRICS.items():
    ClassFactory.register(ClassType.GENERAL, alias=name)(metric)
