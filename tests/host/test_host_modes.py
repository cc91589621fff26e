"""The four modes, and which side each of them asks."""

from __future__ import annotations

import pytest

from tests.host.host_job import Job, answers


def test_mode_mining_then_inference(job: Job) -> None:
    job.modules[2]["name"] = "CloudOnly"
    assert job.run() == 0
    row = answers(job)[3]
    assert (row["is_hard"], row["edge"], row["cloud"]["completion"]) == (True, None, "cloud:question 3 B")


def test_mode_inference_then_mining_asks_the_edge_first(job: Job) -> None:
    job.env["hard_example_mining_mode"] = "inference-then-mining"
    job.plugin(
        "algo/picky.py",
        """
        from sedna.common.class_factory import ClassFactory, ClassType
        @ClassFactory.register(ClassType.HEM, alias="Picky")
        class Picky:
            def __call__(self, result=None):
                hard = result["prediction"] == "B"
                result["completion"] = "spoilt by the router"
                return hard
        """,
    )
    job.modules[2].update(name="Picky", url="algo/picky.py")
    assert job.run() == 0
    easy, hard = answers(job)[:2]
    assert (easy["is_hard"], easy["cloud"]) == (False, None)
    assert easy["edge"]["completion"] == "edge:question 0 A", "the result must be a deep copy of the edge's"
    assert easy["result"]["completion"] == "spoilt by the router"
    assert hard["edge"]["completion"] == "edge:question 1 B"
    assert hard["result"] == hard["cloud"]


def test_mode_self_design_gives_the_edge_models_own_rows(job: Job) -> None:
    job.env["hard_example_mining_mode"] = "self-design"
    del job.modules[2]
    job.env["metrics"] = [{"name": "Count", "url": "env/count.py"}]
    job.job["rank"]["sort_by"] = [{"Count": "descend"}]
    job.plugin(
        "env/count.py",
        """
        from sedna.common.class_factory import ClassFactory, ClassType
        @ClassFactory.register(ClassType.GENERAL, alias="Count")
        def count(y_true, y_pred):
            return sum(row["completion"].startswith("edge:") for row in y_pred)
        """,
    )
    assert job.run() == 0
    assert job.leaderboard()[0]["Count"] == "10"
    assert answers(job)[0]["result"]["completion"] == "edge:question 0 A"


SIDES = """
from sedna.common.class_factory import ClassFactory, ClassType

LOG = []

@ClassFactory.register(ClassType.GENERAL, alias="Drafter")
class Drafter:
    def __init__(self, inference_mode="collaboration"):
        self.inference_mode = inference_mode
    def load(self):
        LOG.append("load drafter")
    def inference(self, data=None):
        return {"completion": "edge alone"}
    def start_session(self, data=None, mining_mode=None):
        return {"request": {"query": data}, "text": []}
    def step(self, session, feedback=None):
        session["text"] += [] if feedback is None else [feedback]
        return {"draft_ids": [len(session["text"])]}
    def close_session(self, session, request=None):
        session["text"].append(session["_pending_feedback"])
        LOG.append("close drafter")
        return {"completion": " ".join(map(str, session["text"])), "request": request, "log": list(LOG)}

@ClassFactory.register(ClassType.GENERAL, alias="Verifier")
class Verifier:
    def __init__(self, fail=False):
        self.fail = fail
    def load(self):
        LOG.append("load verifier")
    def inference(self, data=None):
        return {"completion": "cloud alone"}
    def start_session(self, data=None, draft_session=None):
        assert draft_session["request"] == {"query": data}
        return {"round": 0}
    def verify(self, session, draft_output=None):
        if self.fail:
            return {"progress": False}
        session["round"] += 1
        return {"stop": session["round"] == 3, "feedback": draft_output["draft_ids"][0]}
    def close_session(self, session, request=None):
        LOG.append("close verifier")
"""


@pytest.fixture
def sides(job: Job) -> Job:
    """A job in mode mining-free."""
    job.env["hard_example_mining_mode"] = "mining-free"
    job.plugin("algo/sides.py", SIDES)
    job.env["metrics"] = [{"name": "Rows", "url": "env/rows.py"}]
    job.job["rank"]["sort_by"] = [{"Rows": "descend"}]
    job.plugin(
        "env/rows.py",
        """
        from sedna.common.class_factory import ClassFactory, ClassType
        ClassFactory.register(ClassType.GENERAL, alias="Rows")(lambda y_true, y_pred: len(y_pred))
        """,
    )
    job.modules[:] = [{"type": kind.lower(), "name": kind, "url": "algo/sides.py"} for kind in ("Drafter", "Verifier")]
    return job


def test_mode_mining_free_runs_sessions(sides: Job) -> None:
    assert sides.run() == 0
    first = answers(sides)[0]
    assert (first["is_hard"], first["edge"], first["cloud"]) == (False, None, None)
    assert first["result"]["completion"] == "0 1 2"
    assert first["result"]["request"] == {"query": "question 0 A"}
    assert first["result"]["log"] == ["load drafter", "load verifier", "close drafter"]
    assert answers(sides)[1]["result"]["log"][-2:] == ["close verifier", "close drafter"]


@pytest.mark.parametrize(("mode", "side"), [("edge-only", "edge"), ("cloud-only", "cloud")])
def test_mode_mining_free_with_one_side_alone(sides: Job, mode: str, side: str) -> None:
    sides.hyperparameters(0, inference_mode=[mode])
    assert sides.run() == 0
    row = answers(sides)[0]
    assert row[side] == row["result"] == {"completion": f"{side} alone"}
    assert row["cloud" if side == "edge" else "edge"] is None


def test_mode_mining_free_ends_when_nothing_moves(sides: Job, capfd: pytest.CaptureFixture[str]) -> None:
    sides.hyperparameters(1, fail=[True])
    assert sides.run() == 1
    assert "made no progress" in capfd.readouterr().err


def test_the_oracle_gets_both_models(job: Job) -> None:
    job.modules[2]["name"] = "OracleRouter"
    job.plugin("algo/cloud_model.py", CLOUD_RIGHT)
    assert job.run() == 0
    assert job.leaderboard()[0]["Accuracy"] == "100.0"
    assert job.leaderboard()[0]["Edge Ratio"] == "0.5"


CLOUD_RIGHT = """
from sedna.common.class_factory import ClassFactory, ClassType
from answers import answer
@ClassFactory.register(ClassType.GENERAL, alias="CloudModel")
class CloudModel:
    def inference(self, data, **kwargs):
        return {**answer("cloud", data), "prediction": "A"}
"""
