"""One file per drafting method, and the registry that names them. Importing this package imports nothing heavy."""

from ianvs_specdec.drafters.registry import BACKENDS, METHODS, Method, check, create, default_length, options

__all__ = ["BACKENDS", "METHODS", "Method", "check", "create", "default_length", "options"]
