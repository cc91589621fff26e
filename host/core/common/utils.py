"""Helpers that plugin files may import, as in Ianvs."""

from __future__ import annotations

import os
import time
from typing import Any

from core.common.document import Document


def is_local_file(url: str) -> bool:
    return os.path.isfile(url)


def is_local_dir(url: str) -> bool:
    return os.path.isdir(url)


def get_file_format(url: str) -> str:
    """The extension without its dot; ``jsonforllm`` for ``metadata.json``."""
    return "jsonforllm" if os.path.basename(url) == "metadata.json" else os.path.splitext(url)[1][1:]


def get_local_time() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"


def yaml2dict(url: str) -> Any:
    return Document(url).data
