"""The model in the cloud. Its hyperparameters are described in ianvs_specdec/plugin/routed.py."""

from ianvs_specdec.plugin.models import CloudModel
from sedna.common.class_factory import ClassFactory, ClassType

ClassFactory.register(ClassType.GENERAL, alias="CloudModel")(CloudModel)
