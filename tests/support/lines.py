"""Files of JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def rows_in(path: Path) -> list[Any]:
    """What each line of a file holds."""
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]
