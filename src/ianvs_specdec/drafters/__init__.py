"""One file per drafting method, and the registry that names them. Importing this package imports nothing heavy."""

from ianvs_specdec.drafters.registry import (
    METHODS,
    RULES,
    Method,
    check,
    check_files,
    create,
    default_length,
    method_of,
    replace_files,
    resolve,
)

__all__ = [
    "METHODS",
    "RULES",
    "Method",
    "check",
    "check_files",
    "create",
    "default_length",
    "method_of",
    "replace_files",
    "resolve",
]
