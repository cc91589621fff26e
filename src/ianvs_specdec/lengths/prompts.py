"""How prompts are read beside the drafts of others."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ianvs_specdec.decoding.scheduling import Load

RECENT = 50
"""Steps over which it is averaged how many requests read, and how much."""


@dataclass(frozen=True)
class Prompts:
    """At each of the latest steps, ``reading`` requests had room and had not read their prompts yet, on average, and so
    ``often`` a step read some. Steps may come to read ``most`` times as much, and so to put out as many times the
    tokens, until all leave prompts unread. Then prompts decide how many steps there are, and who is done sooner only
    makes room for more of them."""

    reading: float = 0.0
    often: float = 0.0
    most: float = math.inf


class Readers:
    """Requests that read their prompts."""

    def __init__(self) -> None:
        self._latest: deque[tuple[int, int, int]] = deque(maxlen=RECENT)

    def add(self, load: Load) -> None:
        """The next step."""
        self._latest.append((load.prompt_rows, load.reading, load.unread))

    def known(self) -> Prompts:
        """What is known by now."""
        tokens, reading, unread = np.array(self._latest, dtype=np.float64).T
        # A step that leaves prompts unread has read as much as a step can.
        full = tokens[unread > 0]
        most = max(float(full.mean() / tokens.mean()), 1.0) if full.any() else math.inf
        return Prompts(float(reading.mean()), float((tokens > 0).mean()), most)
