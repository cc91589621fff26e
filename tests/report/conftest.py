"""Workspaces without models, and a headless browser where there is one."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.browser import Browser, find_browser
from tests.support.workspace import Bench, choice, usual

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1400,2400"),
)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Four test cases on eight questions, in the current folder."""
    monkeypatch.chdir(tmp_path)
    return usual(Bench(tmp_path, [choice(number) for number in range(8)]))


def program() -> str:
    found = find_browser()
    if found is None:
        pytest.skip("needs a Chromium browser, e.g. the Debian package chromium, or its path in SPECDEC_CHROMIUM")
    return found


@pytest.fixture(scope="session")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser to click, press keys and tap in."""
    browser = Browser(program(), tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``browse(page, hash)`` gives the document that the browser has made of the page, as HTML."""
    browser = program()

    def run(page: Path, fragment: str = "", *flags: str) -> str:
        profile = tmp_path_factory.mktemp("profile")
        command = [browser, *FLAGS, *flags, f"--user-data-dir={profile}", f"{page.resolve().as_uri()}{fragment}"]
        dump = [] if any(flag.startswith("--screenshot") for flag in flags) else ["--dump-dom"]
        done = subprocess.run(
            [*command[:-1], *dump, command[-1]],
            capture_output=True,
            timeout=120,
            check=True,
            text=True,
            errors="replace",
        )
        return done.stdout

    return run
