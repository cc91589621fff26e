"""JSON files that come with weights: they may be from anybody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ianvs_specdec.errors import UserError

LARGEST = 256 << 20
"""Bytes. The largest that are known, indices and tokenizers, have some 30 MB."""


def read_object(path: Path, *, key: str | None = None) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError, with the ``key`` at fault, where there is none."""
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise UserError(f"{path} has {size} bytes: too much for a file of JSON, at most {LARGEST}", key=key)
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", key=key) from error
    except RecursionError as error:
        raise UserError(f"{path}: not JSON that can be read: it is nested too deeply", key=key) from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", key=key) from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object", key=key)
    return value
