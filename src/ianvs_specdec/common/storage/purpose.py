"""Folders of a work that is done in parts, each kept: what it is for is noted, so that no other work goes on there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import replacing

FILE = "purpose.json"


def check_purpose(folder: Path, purpose: Mapping[str, Any], *, what: str, key: str) -> None:
    """Note, as JSON, what the ``folder`` is for. Raises UserError where it is for something else: ``what`` it holds
    then, such as "checkpoints of another training", and the argument ``key`` that names another folder."""
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
