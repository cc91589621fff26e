"""The routers. Your own is a class with `score(query) -> float`: the probability that the edge's answer will not do."""

from ianvs_specdec.routing.routers import ROUTERS, router
from sedna.common.class_factory import ClassFactory, ClassType

for name in ROUTERS:
    ClassFactory.register(ClassType.HEM, alias=name)(router(name))
