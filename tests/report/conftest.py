"""Workspaces without models, and a headless browser if one is installed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.report.collect import collect
from tests.support.browser import Browser, find_browser
from tests.support.workspace import Bench, choice, usual

ROWS = [choice(number) for number in range(8)]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A workspace of four test cases on eight questions, and its document. Not to be changed."""
    root = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        return root, collect(usual(Bench(root, ROWS)).folder)


@pytest.fixture
def document(shared: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    """The document of ``bench``."""
    return shared[1]


@pytest.fixture
def bench(shared: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A copy of the shared workspace, in the current folder."""
    shutil.copytree(shared[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return Bench(tmp_path, ROWS)


NASTY = '</script><img src=x onerror="document.title=1"><!-- {{SCRIPT}} \u2028 \ud800 & "quoted" <b>'


@pytest.fixture
def nasty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """One whose questions try to leave their place in a page."""
    monkeypatch.chdir(tmp_path)
    return usual(Bench(tmp_path, [choice(number, text=NASTY) for number in range(4)]), drafting=NASTY[:40])


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser to click, press keys and tap in."""
    if (program := find_browser()) is None:
        pytest.skip("needs a Chromium browser, e.g. the Debian package chromium, or its path in SPECDEC_CHROMIUM")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def browse(window: Browser) -> Callable[..., str]:
    """``browse(page, hash)`` gives the document that the browser has made of the page, as HTML."""

    def run(page: Path, fragment: str = "") -> str:
        window.open(page, fragment)
        return str(window.evaluate("document.documentElement.outerHTML"))

    return run
