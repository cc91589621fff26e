"""Packages import downward only, in the order that docs/architecture.md tells. What is in them stays short."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"
PROJECT = "ianvs_specdec"
MAX_LINES, MAX_LINES_OF_A_FUNCTION = 350, 60
"""As CONTRIBUTING.md has them."""
GENERATED = "_pb2.py"


def floors(block: str, prefix: str = "") -> dict[str, int]:
    """Package or module -> its floor, the lowest 0, as the page's block of this name has them line by line."""
    lines = PAGE.read_text(encoding="utf-8").partition(f"```{block}\n")[2].partition("```")[0].splitlines()
    return {prefix + room: level for level, line in enumerate(lines) for room in line.split()}


TREES = {"src": floors("floors", f"{PROJECT}."), "host": floors("host-floors")}


def modules(source: Path) -> dict[str, Path]:
    files = sorted(file for file in source.rglob("*.py") if "build" not in file.relative_to(source).parts)
    names = (".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for file in files)
    return dict(zip(names, files, strict=True))


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def nodes(file: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(file)))


def imported(file: Path, known: dict[str, Path], *, registered: bool = True) -> Iterator[tuple[int, str]]:
    """Line and name of each known module that a file imports, at its top, inside a function or for types only, or,
    where ``registered``, names in a registry as ``"module:Class"``.
    """
    for node in nodes(file):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: a relative import"
            base = node.module or ""
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif registered and isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value.partition(":")[0]]
        yield from ((node.lineno, name) for name in names if name in known)


def violations(source: Path, levels: dict[str, int]) -> list[str]:
    """Imports that do not lead to a lower floor or stay in their own package, one line each."""
    known = modules(source)

    def room(module: str) -> str | None:
        return max((name for name in levels if f"{module}.".startswith(f"{name}.")), key=len, default=None)

    found = []
    for module, file in known.items():
        own = room(module)
        for line, name in imported(file, known):
            other = room(name)
            if own is not None and other is not None and own != other and levels[other] >= levels[own]:
                found.append(f"{file.relative_to(source)}:{line}: {own} imports {name}")
    return found


def test_every_package_stands_on_a_floor() -> None:
    rooms = {f"{PROJECT}.{path.stem}" for path in (ROOT / "src" / PROJECT).iterdir() if path.stem[0] != "_"}
    assert set(TREES["src"]) == rooms
    packages = {f"core.{path.name}" for path in (ROOT / "host" / "core").iterdir() if (path / "__init__.py").is_file()}
    assert packages < set(TREES["host"])


@pytest.mark.parametrize("tree", TREES)
def test_imports_lead_downward(tree: str) -> None:
    assert violations(ROOT / tree, TREES[tree]) == []


@pytest.mark.parametrize("tree", TREES)
def test_modules_do_not_import_each_other_in_a_circle(tree: str) -> None:
    known = modules(ROOT / tree)
    graph = {module: {name for _, name in imported(file, known, registered=False)} for module, file in known.items()}
    while free := [module for module, needed in graph.items() if not needed & graph.keys()]:
        for module in free:
            del graph[module]
    assert sorted(graph) == []


@pytest.mark.parametrize(
    "line",
    [
        "from ianvs_specdec.routing.routers import Router",
        "def f():\n    import ianvs_specdec.routing.routers.base",
        'ROUTER = "ianvs_specdec.routing.routers.base:Router"',
        "if TYPE_CHECKING:\n    from ianvs_specdec.routing.routers.base import Router",
    ],
)
def test_an_upward_import_is_found(line: str, tmp_path: Path) -> None:
    for name, text in {
        "engine/loop.py": line,
        "routing/routers/base.py": "",
        "routing/routers/__init__.py": "",
    }.items():
        path = tmp_path / PROJECT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (found,) = violations(tmp_path, TREES["src"])
    assert found.startswith("ianvs_specdec/engine/loop.py:")


def long_ones(folder: Path) -> Iterator[str]:
    """Files and functions below ``folder`` that are too long, one line each. Generated files do not count."""
    for file in sorted(folder.rglob("*.py")):
        if file.name.endswith(GENERATED) or "build" in file.relative_to(folder).parts:
            continue
        text = file.read_text(encoding="utf-8")
        if (lines := len(text.splitlines())) > MAX_LINES:
            yield f"{file.relative_to(folder)}: {lines} lines"
        functions = (node for node in nodes(file) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        for function in functions:
            if (lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_LINES_OF_A_FUNCTION:
                yield f"{file.relative_to(folder)}:{function.lineno}: {function.name} has {lines} lines"


@pytest.mark.parametrize("folder", ["src", "host", "bench", "tests"])
def test_files_and_functions_stay_short(folder: str) -> None:
    assert list(long_ones(ROOT / folder)) == []


def test_what_is_too_long_is_found(tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text("x = 1\n" * MAX_LINES + "\n")
    (tmp_path / "function.py").write_text("def f():\n" + "    x = 1\n" * MAX_LINES_OF_A_FUNCTION)
    assert list(long_ones(tmp_path)) == ["file.py: 351 lines", "function.py:1: f has 61 lines"]
