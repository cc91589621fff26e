"""A GGUF file in the place of a model's folder: imported once, into the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.progress import print_line
from ianvs_specdec.models.gguf.importing import import_gguf

IMPORT_VERSION = 2
"""Part of the name of an imported folder. Raise it with every change of what an import writes."""


def user_cache() -> Path:
    """The folder in the user's home for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ianvs-specdec"


def gguf_of(model: Path) -> Path | None:
    """The GGUF file that ``model`` is, or the only one in a folder without config.json; None for other models."""
    if model.is_file():
        return model if model.suffix == ".gguf" else None
    files = [] if (model / "config.json").is_file() else list(model.glob("*.gguf"))
    return files[0] if len(files) == 1 else None


def hf_folder(model: Path, *, key: str | None = None) -> Path:
    """``model``, or the folder of the import of the GGUF file that it is. Raises UserError as ``import_once``."""
    file = gguf_of(model)
    return model if file is None else import_once(file, key=key)


def import_folder(path: Path) -> Path:
    """Where the folder of the GGUF file ``path`` is, or will be."""
    status = path.stat()
    content = _digits(status.st_size, status.st_mtime_ns, IMPORT_VERSION)
    return user_cache() / "models" / f"{path.stem}-{_digits(str(path.resolve()))}-{content}"


def _digits(*identity: Any) -> str:
    return hashlib.sha256(repr(identity).encode()).hexdigest()[:16]


def import_once(path: Path, *, key: str | None = None) -> Path:
    """The folder in Hugging Face format of the GGUF file ``path``, made unless it was made of this file before. Imports
    of what the file was earlier are removed.

    Raises UserError, with the ``key`` at fault, as ``import_gguf`` does.
    """
    from filelock import FileLock

    folder = import_folder(path)
    if folder.is_dir():
        return folder
    place = folder.name.rpartition("-")[0]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f"{place}.lock")):
            if not folder.is_dir():
                print_line(f"{path}: importing into {folder}, once", sys.stderr)
                import_gguf(path, folder)
                for other in folder.parent.iterdir():
                    if other.name.rpartition("-")[0] == place and other != folder:
                        shutil.rmtree(other, ignore_errors=True)
    except OSError as error:
        raise UserError(f"cannot import {path} into {folder.parent}: {error.strerror or error}", key=key) from error
    except UserError as error:
        raise UserError(str(error), key=key) from error
    return folder
