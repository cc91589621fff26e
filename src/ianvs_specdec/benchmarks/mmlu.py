"""MMLU (Hendrycks et al. 2021): multiple choice in 57 subjects, prompts as in the original evaluation.

Files: the original CSV (question, four options, letter; the subject is in the file's name), JSON lines, CSV with header
or Parquet with `question`, `choices`, `answer` and `subject`. Differences from the original program: the option "None"
is not read as "nan"; worked examples are left out with --max-characters only, not beyond 2,048 tokens of GPT-2; the
letter that an answer chooses is scored, which works for every back end. With --scorer choice_logprob the probabilities
of the four letters are compared, as in the original.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ianvs_specdec.benchmarks import choices, shots
from ianvs_specdec.benchmarks.choices import ChoiceQuestion
from ianvs_specdec.benchmarks.files import Row
from ianvs_specdec.benchmarks.source import QUESTIONS, Inputs, Part, Source

NAME = "mmlu"

SOURCE = Source(
    home="github.com/hendrycks/test",
    repository="cais/mmlu",
    parts={
        QUESTIONS: Part(
            names=("all/test-*.parquet", "test/*_test.csv", "*_test.csv", "*/test-*.parquet", "*test*.jsonl*"),
            hub=("all/test-00000-of-00001.parquet",),
        ),
        shots.DEV: Part(
            names=("all/dev-*.parquet", "dev/*_dev.csv", "*_dev.csv", "*/dev-*.parquet", "*dev*.jsonl*"),
            hub=("all/dev-00000-of-00001.parquet",),
        ),
    },
)

CATEGORIES = choices.categories(Path(__file__).with_name("mmlu_subjects.csv"))
"""Category -> subjects (categories.py of the original repository)."""


def prompt(item: ChoiceQuestion, worked: Sequence[ChoiceQuestion] = ()) -> str:
    """The prompt of the original evaluation: a heading, ``worked`` examples of the subject, the question.

    The original builds the subject from words with a leading space each, hence the two spaces after "about".
    """
    subject = "".join(f" {word}" for word in item.subject.split("_"))
    heading = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    shown = "".join(f"{example.question}{example.options}\nAnswer: {example.answer}\n\n" for example in worked)
    return f"{heading}{shown}{item.question}{item.options}\nAnswer:"


add_arguments = choices.add_arguments


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    return choices.rows(inputs, options, prompt)
