"""Workspaces without models, and a headless browser where there is one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``browse(page, hash)`` gives the document that the browser has made of the page, as HTML."""
    names = ("chromium", "chromium-browser", "google-chrome", "chrome")
    browser = os.environ.get("SPECDEC_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        pytest.skip("needs a Chromium browser, e.g. the Debian package chromium, or its path in SPECDEC_CHROMIUM")

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
