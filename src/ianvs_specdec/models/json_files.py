"""JSON files that come with weights, from untrusted sources."""

from __future__ import annotations

import atexit
import codecs
import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

LARGEST = 256 << 20
"""Bytes. The largest that are known, indices and tokenizers, have some 30 MB."""


def read_object(path: Path, *, key: str | None = None) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError, with the ``key`` at fault, where there is none."""
    try:
        if (size := path.stat().st_size) > LARGEST:
            raise UserError(f"{path} has {size} bytes: too much for a file of JSON, at most {LARGEST}", key=key)
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", key=key) from error
    except RecursionError as error:
        raise UserError(f"{path}: not JSON that can be read: it is nested too deeply", key=key) from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", key=key) from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object", key=key)
    return value


@functools.cache
def without_bom(folder: Path) -> Path:
    """A model's folder as transformers can read it: where files of JSON begin with a byte order mark, one of links and
    of copies without, which lasts as long as the process.
    """
    contents = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    marked = {name: content[3:] for name, content in contents.items() if content.startswith(codecs.BOM_UTF8)}
    if not marked:
        return folder
    made = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, made)
    for path in folder.iterdir():
        if path.name not in marked:
            (made / path.name).symlink_to(path.resolve())
    for name, content in marked.items():
        (made / name).write_bytes(content)
    return made
