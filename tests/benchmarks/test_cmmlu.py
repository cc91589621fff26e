"""CMMLU: prompts, files and archive, with made-up rows."""

# ruff: noqa: RUF001 - Chinese punctuation
from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks import cmmlu

Rows = list[dict[str, Any]]

HEADER = ",Question,A,B,C,D,Answer"
FILES = {
    "dev/anatomy.csv": (HEADER, "0,手有几个手指,三,四,五,六,C", "1,人有几只眼睛,一,二,三,四,B"),
    "test/anatomy.csv": (HEADER, '0,"骨头，是",软,硬,甜,咸,B', "1,血的颜色,红,绿,蓝,黑,A"),
    "test/arts.csv": (HEADER, "0,红加黄,橙,绿,紫,白,A"),
}

ZERO_SHOT = """以下是关于解剖学的单项选择题，请直接给出正确答案的选项。

题目：骨头，是\nA. 软\nB. 硬\nC. 甜\nD. 咸\n答案是："""

TWO_SHOT = """以下是关于解剖学的单项选择题，请直接给出正确答案的选项。

题目：手有几个手指\nA. 三\nB. 四\nC. 五\nD. 六\n答案是：C

题目：人有几只眼睛\nA. 一\nB. 二\nC. 三\nD. 四\n答案是：B

题目：血的颜色\nA. 红\nB. 绿\nC. 蓝\nD. 黑\n答案是："""


def test_prompts_are_the_originals(write: Callable[..., Path], prepare: Callable[..., Rows]) -> None:
    files = [write(name, *lines) for name, lines in FILES.items()]
    folder = files[0].parents[1]
    rows = prepare("cmmlu", "--from", folder)
    assert rows[0]["question"]["turns"] == [ZERO_SHOT]
    assert [row["question"]["id"] for row in rows] == ["cmmlu_anatomy-0001", "cmmlu_anatomy-0002", "cmmlu_arts-0001"]
    assert [row["answer"] for row in rows] == ["B", "A", "A"]
    assert rows[2]["question"]["turns"][0].startswith("以下是关于艺术学的")
    rows = prepare("cmmlu", "--from", folder / "test" / "anatomy.csv", "--dev", folder / "dev", "--shots", "2")
    assert rows[1]["question"]["turns"] == [TWO_SHOT]


def test_the_archive_of_the_hub(
    tmp_path: Path, prepare: Callable[..., Rows], write: Callable[..., Path], refused: Callable[..., str]
) -> None:
    archive = tmp_path / "snapshot" / "cmmlu_v1_0_1.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as file:
        for name, lines in FILES.items():
            file.writestr(name, "\n".join(lines) + "\n")
    for source in (archive, archive.parent):
        rows = prepare("cmmlu", "--from", source, "--limit", "1")
        assert rows[0]["question"]["turns"] == [ZERO_SHOT]
    assert "there are 0 worked examples for cmmlu_arts" in refused("cmmlu", "--from", archive, "--shots", "1")
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("test/virology.csv", f"{HEADER}\n0,a,b\n")
    assert "cmmlu_v1_0_1.zip/test/virology.csv:2: 3 columns, but the header" in refused("cmmlu", "--from", archive)
    assert "cannot be read as a zip archive" in refused("cmmlu", "--from", write("broken.zip", "PK"))


def test_an_unknown_subject_is_an_error(write: Callable[..., Path], refused: Callable[..., str]) -> None:
    message = refused("cmmlu", "--from", write("test/anatmy.csv", *FILES["dev/anatomy.csv"]))
    assert "unknown subject of CMMLU 'anatmy'. Did you mean 'anatomy'?" in message


def test_every_cmmlu_subject_has_one_category() -> None:
    sizes = {name: len(groups) for name, groups in cmmlu.CATEGORIES.items()}
    assert sizes == {"STEM": 17, "humanities": 13, "social sciences": 22, "other": 15, "China specific": 15}
    others = [groups for name, groups in cmmlu.CATEGORIES.items() if name != "China specific"]
    assert len(frozenset().union(*others)) == sum(map(len, others)) == 67
    assert cmmlu.CATEGORIES["China specific"] <= frozenset().union(*others)
