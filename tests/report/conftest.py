"""Workspaces without models, and a headless browser where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, find_browser
from tests.support.workspace import Bench, choice, usual


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Four test cases on eight questions, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return usual(Bench(tmp_path, [choice(number) for number in range(8)]))


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
