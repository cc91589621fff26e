"""Names in the configuration files."""

from __future__ import annotations

JOINT_INFERENCE = "jointinference"
PARADIGMS = (
    "singletasklearning",
    "singletasklearning_with_compression",
    "incrementallearning",
    "multiedgeinference",
    "lifelonglearning",
    "federatedlearning",
    "federatedclassincrementallearning",
    JOINT_INFERENCE,
)
"""Paradigms of Ianvs. This host runs JOINT_INFERENCE."""

PROCESSOR, EDGE, CLOUD, ROUTER = "dataset_processor", "edgemodel", "cloudmodel", "hard_example_mining"
DRAFTER, VERIFIER = "drafter", "verifier"
MODULES = (PROCESSOR, EDGE, CLOUD, ROUTER, DRAFTER, VERIFIER)
"""Module types of joint inference."""

SYSTEM_METRICS = ("samples_transfer_ratio", "FWT", "BWT", "task_avg_acc", "MATRIX", "forget_rate")
"""Metrics that Ianvs computes itself, in paradigms that this host does not run."""

SELF_DESIGN, MINING_FREE = "self-design", "mining-free"
MINING_MODES = ("mining-then-inference", "inference-then-mining", SELF_DESIGN, MINING_FREE)
"""Values of ``hard_example_mining_mode`` in the testenv file. The first is the default."""

FIXED_COLUMNS = ("rank", "algorithm", "paradigm", "time", "url")
"""Columns of every leaderboard."""
