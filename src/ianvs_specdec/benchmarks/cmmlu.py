"""CMMLU (Li et al. 2023): multiple choice in 67 subjects in Chinese, prompts as in the original evaluation.

Files: the original CSV (row number, Question, A to D, Answer; the subject is the file's name), or the archive of the
hub. The data is licensed CC-BY-NC-SA. Groups are named cmmlu_SUBJECT, since MMLU has subjects of the same names in
other categories.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ianvs_specdec.benchmarks import choices, shots
from ianvs_specdec.benchmarks.choices import ChoiceQuestion
from ianvs_specdec.benchmarks.files import Row, records
from ianvs_specdec.benchmarks.source import QUESTIONS, Inputs, Part, Source
from ianvs_specdec.common.errors import unknown

NAME = "cmmlu"
PREFIX = "cmmlu_"

_ARCHIVE = ("cmmlu_v1_0_1.zip",)

SOURCE = Source(
    home="github.com/haonan-li/CMMLU",
    repository="haonan-li/cmmlu",
    parts={
        QUESTIONS: Part(
            names=("test/*.csv", "*/cmmlu-test.parquet", "*/test/*.parquet", "*test*.jsonl*", *_ARCHIVE), hub=_ARCHIVE
        ),
        shots.DEV: Part(
            names=("dev/*.csv", "*/cmmlu-dev.parquet", "*/dev/*.parquet", "*dev*.jsonl*", *_ARCHIVE), hub=_ARCHIVE
        ),
    },
)

_FILE = Path(__file__).with_name("cmmlu_subjects.csv")
"""Subjects with category and name in prompts (categories.py of the original repository)."""
_SUBJECTS = [row for _, row in records(_FILE)]
_NAMES = {row["subject"]: row["name"] for row in _SUBJECTS}

CATEGORIES = {
    **choices.categories(_FILE, PREFIX),
    "China specific": frozenset(PREFIX + row["subject"] for row in _SUBJECTS if row["china_specific"] == "yes"),
}
"""Category -> groups. Those in "China specific" are also in another category."""


def prompt(item: ChoiceQuestion, worked: Sequence[ChoiceQuestion] = ()) -> str:
    """The prompt of the original evaluation for direct answers: a heading, ``worked`` examples, the question."""
    if item.subject not in _NAMES:
        raise unknown("subject of CMMLU", item.subject, _NAMES)
    heading = f"以下是关于{_NAMES[item.subject]}的单项选择题，请直接给出正确答案的选项。\n\n"  # noqa: RUF001
    shown = "".join(f"{_asked(example)}{example.answer}\n\n" for example in worked)
    return heading + shown + _asked(item)


def _asked(item: ChoiceQuestion) -> str:
    return f"题目：{item.question}{item.options}\n答案是："  # noqa: RUF001


add_arguments = choices.add_arguments


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    return choices.rows(inputs, options, prompt, PREFIX)
