"""JSON files of model folders, which are untrusted."""

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

MAX_FILE_BYTES = 256 << 20
"""Maximum size in bytes. The largest known files, indices and tokenizers, have about 30 MB."""


def read_object(path: Path, *, key: str | None = None) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError with ``key`` if the file does not hold one."""
    try:
        if (size := path.stat().st_size) > MAX_FILE_BYTES:
            raise UserError(f"{path} has {size} bytes: too large for a JSON file, at most {MAX_FILE_BYTES}", key=key)
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", key=key) from error
    except RecursionError as error:
        raise UserError(f"{path}: its JSON is nested too deeply", key=key) from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", key=key) from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object", key=key)
    return value


@functools.cache
def without_bom(folder: Path) -> Path:
    """A model folder that transformers can read. If JSON files begin with a byte order mark, it is a temporary folder
    of links and of copies without the mark, deleted at exit."""
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
