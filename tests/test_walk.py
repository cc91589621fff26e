"""The walk through the code, with which docs/architecture.md begins, quotes the sources as they are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"
MAX_LINES = 200
"""Of code that a newcomer reads along."""
EXCERPT = re.compile(r"```(?:python|yaml)\n# (\S+)\n(.*?)```\n", re.DOTALL)


def excerpts() -> list[tuple[str, list[str]]]:
    """Where each excerpt is from, and its lines."""
    walk = PAGE.read_text(encoding="utf-8").partition("\n## A walk through the code\n")[2].partition("\n## ")[0]
    return [(place, lines.splitlines()) for place, lines in EXCERPT.findall(walk)]


def source_of(place: str) -> str:
    """The text of a file, or of the function ``Class.name`` behind ``::``."""
    path, _, qualified = place.partition("::")
    text = Path(ROOT, path).read_text(encoding="utf-8")
    if not qualified:
        return text
    scope: list[ast.AST] = [ast.parse(text)]
    for name in qualified.split("."):
        scope = [node for parent in scope for node in ast.walk(parent) if getattr(node, "name", None) == name]
    (found,) = scope
    return ast.get_source_segment(text, found, padded=True) or ""


@pytest.mark.parametrize(("place", "lines"), excerpts(), ids=[place for place, _ in excerpts()])
def test_an_excerpt_is_in_the_source(place: str, lines: list[str]) -> None:
    left = iter([line.rstrip() for line in source_of(place).splitlines() if not line.lstrip().startswith("#")])
    missing = [line for line in lines if line != "..." and line not in left]
    assert not missing, f"{PAGE.name} quotes what {place} has not, or not in this order"


def test_the_walk_is_short() -> None:
    found = excerpts()
    assert len(found) > 10
    assert sum(len(lines) for _, lines in found) <= MAX_LINES
