"""Mining modes. Mode mining-free is in ``test_upstream_examples``."""

from __future__ import annotations

from tests.host.host_job import Job, answers


def test_mode_mining_then_inference(job: Job) -> None:
    job.modules[2]["name"] = "CloudOnly"
    assert job.run() == 0
    row = answers(job)[3]
    assert (row["is_hard"], row["edge"], row["cloud"]["completion"]) == (True, None, "cloud:question 3 B")


def test_in_mode_inference_then_mining_the_edge_answers_first(job: Job) -> None:
    job.env["hard_example_mining_mode"] = "inference-then-mining"
    body = """
    def __call__(self, result=None):
        hard = result["prediction"] == "B"
        result["completion"] = "spoilt by the router"
        return hard
    """
    job.define("algo/picky.py", "Picky", body, "HEM")
    job.modules[2].update(name="Picky", url="algo/picky.py")
    assert job.run() == 0
    easy, hard = answers(job)[:2]
    assert (easy["is_hard"], easy["cloud"]) == (False, None)
    assert easy["edge"]["completion"] == "edge:question 0 A", "the result must be a deep copy of the edge's"
    assert easy["result"]["completion"] == "spoilt by the router"
    assert hard["edge"]["completion"] == "edge:question 1 B"
    assert hard["result"] == hard["cloud"]


def test_mode_self_design_returns_the_edge_models_results(job: Job) -> None:
    job.env["hard_example_mining_mode"] = "self-design"
    del job.modules[2]
    job.env["metrics"] = [{"name": "Undefined", "url": "env/metrics.py"}]
    job.job["rank"]["sort_by"] = [{"Undefined": "descend"}]
    assert job.run() == 0
    assert job.leaderboard()[0]["Undefined"] == ""
    assert answers(job)[0]["result"]["completion"] == "edge:question 0 A"
