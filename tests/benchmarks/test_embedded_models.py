"""The shipped models: small, quick to load, and apart enough that routing between them is worth something."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ianvs_specdec.backends.specdec import AutoregressiveLLM  # noqa: E402
from ianvs_specdec.benchmarks.rows import query_of  # noqa: E402
from ianvs_specdec.benchmarks.scorers import scorer  # noqa: E402
from ianvs_specdec.common.types import Sampling, messages_of  # noqa: E402
from tests.support.jsonl import read_jsonl  # noqa: E402
from tests.support.paths import EXAMPLE  # noqa: E402

MODELS = EXAMPLE / "models"
SAMPLING = Sampling(max_tokens=256)


def rows_of(name: str) -> list[dict[str, Any]]:
    return read_jsonl(EXAMPLE / "dataset" / name / "test.jsonl")


def test_all_weights_together_are_under_40_megabytes() -> None:
    weights = list(MODELS.rglob("*.safetensors"))
    assert {file.parent.name for file in weights} >= {"edge", "cloud"}
    assert sum(file.stat().st_size for file in weights) < 40e6
    # Medusa's own format is a file of torch; it must hold tensors and nothing that runs.
    others = [*MODELS.rglob("*.bin"), *MODELS.rglob("*.pt")]
    assert [file.name for file in others] == ["medusa_lm_head.pt"]
    assert all(isinstance(t, torch.Tensor) for t in torch.load(others[0], weights_only=True).values())


@pytest.mark.slow
def test_the_cloud_knows_what_the_edge_does_not() -> None:
    rows = rows_of("knowledge")[::3]
    right: dict[str, list[bool]] = {}
    for side in ("edge", "cloud"):
        llm = AutoregressiveLLM(str(MODELS / side), dtype="float32", device="cpu")
        right[side] = []
        for row in rows:
            query = query_of(row["question"], row["answer"])
            answer = llm.generate(messages_of(query, []), SAMPLING)
            right[side].append(scorer("choice")([answer.text], row["answer"]) == 100)
    edge, cloud = (100 * sum(right[side]) / len(rows) for side in ("edge", "cloud"))
    oracle = 100 * sum(e or c for e, c in zip(right["edge"], right["cloud"], strict=True)) / len(rows)
    assert cloud >= 80
    assert 35 <= edge <= 65
    assert cloud - edge >= 25
    assert oracle >= cloud + 1
