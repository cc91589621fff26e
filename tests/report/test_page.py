"""The page: self-contained, foreign text stays text; errors of the command."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.report.collect import collect, to_csv
from ianvs_specdec.report.page import SCRIPTS, to_html
from tests.report.conftest import NASTY
from tests.support.workspace import Bench


def embedded(page: str) -> dict:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)


def test_foreign_text_cannot_leave_its_place(nasty: Bench) -> None:
    document = collect(nasty.folder)
    page = to_html(document)
    assert page.count("<script") == page.count("</script>") == 2
    assert "<img" not in page
    assert "<b>" not in page
    assert page.count("'use strict';") == 1
    assert embedded(page)["queries"][0]["turns"] == [NASTY.replace("\ud800", "?")]
    assert page.encode("utf-8")


def test_nothing_is_loaded_from_elsewhere(document: dict[str, Any]) -> None:
    page = to_html(document)
    outside = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z0-9.-]+\.[a-z]{2,}|url\(|@import|\bsrc=|<link", outside)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert "default-src 'none'" in policy
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy


def test_scripts_make_nodes_from_text_only() -> None:
    from importlib import resources

    folder = resources.files("ianvs_specdec.report").joinpath("page")
    text = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text)


def test_the_command_writes_page_json_and_csv(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["report", "workspace/job", "--json", "all.json", "--csv", "all.csv", "--queries", "3"])
    said = capsys.readouterr()
    assert (code, said.out) == (0, "")
    assert "report.html: 4 test cases of 1 job, 32 answers (12 to look at one by one)" in said.err
    document = json.loads(Path("all.json").read_text(encoding="utf-8"))
    assert embedded((bench.folder / "report.html").read_text(encoding="utf-8")) == document
    assert Path("all.csv").read_text(encoding="utf-8") == to_csv(document)
    assert sorted(path.name for path in Path().iterdir()) == ["all.csv", "all.json", "questions.jsonl", "workspace"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["."], "specdec report: . holds no results of Ianvs"),
        (["workspace", "--out", "absent/page.html"], "cannot write absent/page.html: the folder absent does not exist"),
        (["workspace", "--queries", "-1"], "--queries must be 0 or more, not -1"),
    ],
)
def test_mistakes_are_one_clear_message(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["report", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_an_unwritable_workspace_suggests_out(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: int
) -> None:

    def refuse(path: Path, text: str) -> None:
        raise OSError(error, "no page here")

    with monkeypatch.context() as patched:
        patched.setattr("ianvs_specdec.common.storage.atomic.write_atomically", refuse)
        assert main(["report", str(bench.folder)]) != 0
        told = capsys.readouterr().err
        assert f"cannot write {bench.folder / 'report.html'}: no page here; --out FILE.html writes" in told
        assert "Traceback" not in told
        assert main(["report", str(bench.folder), "--out", str(tmp_path / "own.html")]) != 0
        assert "--out" not in capsys.readouterr().err
    assert main(["report", str(bench.folder), "--out", str(tmp_path / "own.html")]) == 0
    assert not (bench.folder / "report.html").exists()
