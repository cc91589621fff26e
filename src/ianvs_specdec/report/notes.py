"""What is to be known of test cases, told once for all that it holds for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def told(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """The notes of the document's test cases, one line for each kind. The kind is what stands before the colon: the
    figures after it may differ, and are then those of the first test case, which is named.
    """
    kinds: dict[str, list[tuple[str, str]]] = {}
    for case in cases:
        for note in case["notes"]:
            kinds.setdefault(note.partition(": ")[0], []).append((case["name"], note))
    lines = []
    for found in kinds.values():
        name, note = found[0]
        if len(found) == 1:
            lines.append(f"{name}: {note}")
            continue
        whose = f" (of the first, {name})" if any(text != note for _, text in found) else ""
        lines.append(f"{len(found)} of {len(cases)} test cases: {note}{whose}")
    return lines
