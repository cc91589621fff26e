"""The model in the cloud. Its hyperparameters are described in ianvs_specdec/models.py."""

from ianvs_specdec.models import CloudModel
from sedna.common.class_factory import ClassFactory, ClassType

ClassFactory.register(ClassType.GENERAL, alias="CloudModel")(CloudModel)
