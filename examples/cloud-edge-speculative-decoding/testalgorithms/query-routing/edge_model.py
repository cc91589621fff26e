"""The model on the edge. Its hyperparameters are described in ianvs_specdec/models.py."""

from ianvs_specdec.models import EdgeModel
from sedna.common.class_factory import ClassFactory, ClassType

ClassFactory.register(ClassType.GENERAL, alias="EdgeModel")(EdgeModel)
