"""Drafting methods, one file each, and their registry. Importing this package imports nothing heavy."""

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
