"""Router columns use the answers of all test cases, like ``route eval``."""

from __future__ import annotations

import json

import pytest

from ianvs_specdec.commands.cli import main
from tests.support.counting_api import CountingAPI, fingerprint
from tests.support.harness import Workplace

NAMES = ("Router AUROC", "Router APGR", "Router APGR CI95")


def question(index: int) -> dict[str, object]:
    """The cloud's answer is the expected one, of each sixth question the edge's."""
    text = f"Question {index}?"
    model = "cloud-model" if index % 6 else "edge-model"
    return {
        "question": {"turns": [text], "id": f"q{index}", "scorer": "text"},
        "answer": fingerprint(model, [{"role": "user", "content": text}]),
    }


@pytest.mark.slow
def test_router_columns_equal_route_eval(
    workplace: Workplace, api: CountingAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace.on_api(api.url)
    workplace.algorithms("EdgeOnly", "CloudOnly", "RandomRouter")
    workplace.data([question(index) for index in range(12)])
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    assert len(api.asked) == 24, "the metrics ask nobody"
    board = {router: row for (router, _), row in workplace.leaderboard().items()}
    for router in ("EdgeOnly", "CloudOnly"):
        assert [board[router][name] for name in NAMES] == [""] * 3, "equal scores have no quality"

    monkeypatch.chdir(workplace.root)
    assert main(["route", "eval", "--job", str(workplace.workspace), "-o", "evaluated"]) == 0
    document = json.loads((workplace.root / "evaluated" / "evaluation.json").read_text(encoding="utf-8"))
    assert document["queries"] == 12
    (found,) = [row for row in document["metrics"] if row["router"] == "RandomRouter"]
    assert float(board["RandomRouter"]["Router AUROC"]) == pytest.approx(found["auroc"], rel=1e-5)
    assert float(board["RandomRouter"]["Router APGR"]) == pytest.approx(found["apgr"], rel=1e-5)
    half = (found["apgr_high"] - found["apgr_low"]) / 2
    assert float(board["RandomRouter"]["Router APGR CI95"]) == pytest.approx(half, rel=1e-4)
    assert found["quality"] == pytest.approx(float(board["RandomRouter"]["Accuracy"]), rel=1e-4)
