"""CMMLU (Li et al. 2023): multiple choice in 67 subjects in Chinese, prompts as in the original evaluation.

Files: the original CSV (row number, Question, A to D, Answer; the subject is the file's name), or the archive of the
hub. The data is licensed CC-BY-NC-SA. Groups are named cmmlu_SUBJECT, since MMLU has subjects of the same names in
other categories.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ianvs_specdec.benchmarks import choices, shots
from ianvs_specdec.benchmarks.choices import Item
from ianvs_specdec.benchmarks.files import Row
from ianvs_specdec.benchmarks.source import QUESTIONS, Inputs, Part, Source
from ianvs_specdec.errors import unknown

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

SUBJECTS = {
    "STEM": {
        "anatomy": "解剖学",
        "astronomy": "天文学",
        "college_actuarial_science": "大学精算学",
        "college_engineering_hydrology": "大学工程水文学",
        "college_mathematics": "大学数学",
        "college_medical_statistics": "大学医学统计",
        "computer_science": "计算机科学",
        "conceptual_physics": "概念物理学",
        "electrical_engineering": "电气工程",
        "elementary_mathematics": "初等数学",
        "genetics": "遗传学",
        "high_school_biology": "高中生物",
        "high_school_chemistry": "高中化学",
        "high_school_mathematics": "高中数学",
        "high_school_physics": "高中物理学",
        "machine_learning": "机器学习",
        "virology": "病毒学",
    },
    "humanities": {
        "arts": "艺术学",
        "chinese_history": "中国历史",
        "chinese_literature": "中国文学",
        "college_law": "大学法律",
        "global_facts": "全球事实",
        "international_law": "国际法学",
        "jurisprudence": "法理学",
        "logical": "逻辑学",
        "marxist_theory": "马克思主义理论",
        "philosophy": "哲学",
        "professional_law": "专业法学",
        "world_history": "世界历史",
        "world_religions": "世界宗教",
    },
    "social sciences": {
        "ancient_chinese": "古汉语",
        "business_ethics": "商业伦理",
        "chinese_civil_service_exam": "中国公务员考试",
        "chinese_food_culture": "中国饮食文化",
        "chinese_foreign_policy": "中国外交政策",
        "chinese_teacher_qualification": "中国教师资格",
        "college_education": "大学教育学",
        "economics": "经济学",
        "education": "教育学",
        "elementary_chinese": "小学语文",
        "ethnology": "民族学",
        "high_school_geography": "高中地理",
        "high_school_politics": "高中政治",
        "journalism": "新闻学",
        "management": "管理学",
        "marketing": "市场营销",
        "modern_chinese": "现代汉语",
        "professional_accounting": "专业会计",
        "professional_psychology": "专业心理学",
        "public_relations": "公共关系",
        "security_study": "安全研究",
        "sociology": "社会学",
    },
    "other": {
        "agronomy": "农学",
        "chinese_driving_rule": "中国驾驶规则",
        "clinical_knowledge": "临床知识",
        "college_medicine": "大学医学",
        "computer_security": "计算机安全",
        "construction_project_management": "建设工程管理",
        "elementary_commonsense": "小学常识",
        "elementary_information_and_technology": "小学信息技术",
        "food_science": "食品科学",
        "human_sexuality": "人类性行为",
        "legal_and_moral_basis": "法律与道德基础",
        "nutrition": "营养学",
        "professional_medicine": "专业医学",
        "sports_science": "体育学",
        "traditional_chinese_medicine": "中医中药",
    },
}
"""Category -> subject -> its name in prompts (categories.py of the original repository)."""

_CHINA = (
    *("ancient_chinese", "chinese_civil_service_exam", "chinese_driving_rule", "chinese_food_culture"),
    *("chinese_foreign_policy", "chinese_history", "chinese_literature", "chinese_teacher_qualification"),
    *("construction_project_management", "elementary_chinese", "elementary_commonsense", "ethnology"),
    *("high_school_politics", "modern_chinese", "traditional_chinese_medicine"),
)

CATEGORIES = {
    **{category: frozenset(PREFIX + subject for subject in names) for category, names in SUBJECTS.items()},
    "China specific": frozenset(PREFIX + subject for subject in _CHINA),
}
"""Category -> groups. Those in "China specific" are in one of the others, too."""

_CHINESE = {subject: name for names in SUBJECTS.values() for subject, name in names.items()}


def prompt(item: Item, worked: Sequence[Item] = ()) -> str:
    """The prompt of the original evaluation for direct answers: a heading, ``worked`` examples, the question."""
    if item.subject not in _CHINESE:
        raise unknown("subject of CMMLU", item.subject, _CHINESE)
    heading = f"以下是关于{_CHINESE[item.subject]}的单项选择题，请直接给出正确答案的选项。\n\n"  # noqa: RUF001
    shown = "".join(f"{_asked(example)}{example.answer}\n\n" for example in worked)
    return heading + shown + _asked(item)


def _asked(item: Item) -> str:
    return f"题目：{item.question}{item.options}\n答案是："  # noqa: RUF001


add_arguments = shots.add_arguments


def rows(inputs: Inputs, options: argparse.Namespace) -> list[Row]:
    return choices.rows(inputs, options, prompt, PREFIX)
