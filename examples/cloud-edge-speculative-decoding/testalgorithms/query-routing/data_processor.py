"""Hands each row to router and models together with its answer and number."""

from ianvs_specdec.plugin.processor import DatasetProcessor
from sedna.common.class_factory import ClassFactory, ClassType

ClassFactory.register(ClassType.GENERAL, alias="DatasetProcessor")(DatasetProcessor)
