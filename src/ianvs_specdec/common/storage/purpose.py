"""Folders of resumable work, with a note of their purpose, so that other work does not continue there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import replacing

FILE = "purpose.json"


def check_purpose(folder: Path, purpose: Mapping[str, Any], *, what: str, key: str) -> None:
    """Write the ``purpose`` of a folder as JSON. Raises UserError if the folder has another purpose: it holds ``what``,
    such as "checkpoints of another training"; the option ``key`` chooses another folder."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / FILE
    if file.exists():
        known = json.loads(file.read_text(encoding="utf-8"))
        if different := [name for name, value in purpose.items() if known.get(name) != value]:
            raise UserError(
                f"{folder} holds {what} ({', '.join(different)} differ): delete it or give another folder with --{key}",
                key=key,
            )
    with replacing(file) as temporary:
        temporary.write_text(json.dumps(purpose, indent=2) + "\n", encoding="utf-8")
