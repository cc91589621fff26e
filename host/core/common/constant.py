"""The words of the configuration files."""

from __future__ import annotations

from enum import Enum


class DatasetFormat(Enum):
    """Formats of data files; this host reads JSONL and JSONFORLLM (``metadata.json`` with ``data.jsonl``)."""

    CSV = "csv"
    TXT = "txt"
    JSON = "json"
    JSONL = "jsonl"
    JSONFORLLM = "jsonforllm"


class ParadigmType(Enum):
    """Paradigms that Ianvs knows; this host runs JOINT_INFERENCE."""

    SINGLE_TASK_LEARNING = "singletasklearning"
    SINGLE_TASK_LEARNING_WITH_COMPRESSION = "singletasklearning_with_compression"
    INCREMENTAL_LEARNING = "incrementallearning"
    MULTIEDGE_INFERENCE = "multiedgeinference"
    LIFELONG_LEARNING = "lifelonglearning"
    FEDERATED_LEARNING = "federatedlearning"
    FEDERATED_CLASS_INCREMENTAL_LEARNING = "federatedclassincrementallearning"
    JOINT_INFERENCE = "jointinference"


class ModuleType(Enum):
    """Module types of joint inference."""

    DATA_PROCESSOR = "dataset_processor"
    EDGEMODEL = "edgemodel"
    CLOUDMODEL = "cloudmodel"
    HARD_EXAMPLE_MINING = "hard_example_mining"
    DRAFTER = "drafter"
    VERIFIER = "verifier"


class SystemMetric(Enum):
    """Metrics that Ianvs computes itself, without a file of the user's, in paradigms that this host does not run."""

    SAMPLES_TRANSFER_RATIO = "samples_transfer_ratio"
    FWT = "FWT"
    BWT = "BWT"
    TASK_AVG_ACC = "task_avg_acc"
    MATRIX = "MATRIX"
    FORGET_RATE = "forget_rate"


class MiningMode(Enum):
    """Values of ``hard_example_mining_mode``, a key of the test environment."""

    MINING_THEN_INFERENCE = "mining-then-inference"
    INFERENCE_THEN_MINING = "inference-then-mining"
    SELF_DESIGN = "self-design"
    MINING_FREE = "mining-free"


class TestObjectType(Enum):
    """What a job tests."""

    __test__ = False  # not a test class, whatever a test runner thinks of the name

    ALGORITHMS = "algorithms"


FIXED_COLUMNS = ("rank", "algorithm", "paradigm", "time", "url")
"""Columns that every leaderboard has, whatever the job."""


def words(kind: type[Enum]) -> tuple[str, ...]:
    """The values of one of the enumerations above, in order."""
    return tuple(member.value for member in kind)
