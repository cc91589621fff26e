"""The routers. Your own is a class with `score(query) -> float`: the probability that the edge's answer will not do."""

from ianvs_specdec.routers import CloudOnly, EdgeOnly, OracleRouter, RandomRouter
from sedna.common.class_factory import ClassFactory, ClassType

for router in (EdgeOnly, CloudOnly, RandomRouter, OracleRouter):
    ClassFactory.register(ClassType.HEM, alias=router.__name__)(router)
