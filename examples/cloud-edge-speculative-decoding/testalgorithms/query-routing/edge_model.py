"""The model on the edge. Its hyperparameters are described in ianvs_specdec/plugin/routed.py."""

from ianvs_specdec.plugin.models import EdgeModel
from sedna.common.class_factory import ClassFactory, ClassType

ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")(EdgeModel)
