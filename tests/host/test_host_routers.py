"""``ianvs check`` builds custom routers, and shipped ones check the other modules."""

from __future__ import annotations

from typing import Any

import pytest

from core.cmd.benchmarking import main
from tests.host.host_job import Job

HEAD = "from sedna.common.class_factory import ClassFactory, ClassType\n"
PLAIN = (
    HEAD
    + """
@ClassFactory.register(ClassType.HEM, alias="Mine")
class Mine:
    def __init__(self, threshold=0.5, **kwargs):
        if not 0 <= threshold <= 1:
            raise ValueError("threshold must be from 0 to 1")
        self.threshold = threshold
        print("built")
    def __call__(self, data=None):
        return False
    def cleanup(self):
        print("cleaned up")
"""
)
OWN = (
    HEAD
    + """
from ianvs_specdec.routing.routers import Router

@ClassFactory.register(ClassType.HEM, alias="Mine")
class Mine(Router):
    def __init__(self, limit=100, **others):
        super().__init__(**others)
        self.longest = int(limit)
    def score(self, query):
        return 0.0
"""
)
SHIPPED = (
    HEAD
    + """
from ianvs_specdec.plugin.processor import DatasetProcessor
from ianvs_specdec.plugin.models import CloudModel, EdgeModel
from ianvs_specdec.routing.routers import CascadeRouter, LatencyRouter

for one in (DatasetProcessor, EdgeModel, CloudModel):
    ClassFactory.register(ClassType.GENERAL, alias=one.__name__)(one)
for one in (CascadeRouter, LatencyRouter):
    ClassFactory.register(ClassType.HEM, alias=one.__name__)(one)
"""
)
API = {"model": ["m"], "backend": ["api"], "api_base_url": ["http://127.0.0.1:9/v1"]}


def errors(job: Job, capfd: pytest.CaptureFixture[str], code: int = 2) -> list[str]:
    return [line for line in job.checked(capfd, code) if "warning" not in line]


def own(job: Job, text: str, **hyperparameters: list[Any]) -> None:
    job.plugin("algo/mine.py", text)
    job.modules[2].update(name="Mine", url="algo/mine.py")
    job.hyperparameters(2, **hyperparameters)


@pytest.mark.parametrize(
    ("text", "values", "message"),
    [
        (PLAIN, {"threshold": [0.5, -1]}, "ValueError: threshold must be from 0 to 1 (algo/mine.py:7 in __init__)"),
        (PLAIN, {"threshold": ["high"]}, "TypeError: '<=' not supported"),
        (OWN, {"threshold": [1.5]}, "threshold must be a number from 0 to 1, not 1.5"),
        (OWN, {"limt": [3]}, "unexpected keyword argument 'limt'"),
    ],
)
def test_errors_of_router_constructors(
    job: Job, capfd: pytest.CaptureFixture[str], text: str, values: dict[str, list[Any]], message: str
) -> None:
    own(job, text, **values)
    (line,) = errors(job, capfd)
    assert line.startswith("ianvs: algorithm.yaml:")
    assert "hard_example_mining Mine: " in line
    assert message in line
    (name,) = values
    assert f"algorithm.yaml:{job.line_of('algorithm.yaml', f'{name}:')}: " in line


def test_check_builds_routers_and_cleans_up(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    own(job, PLAIN, threshold=[0.1, 0.2])
    assert main(["check", "-f", job.save()]) == 0
    assert capfd.readouterr().out.splitlines()[:4] == ["built", "cleaned up"] * 2
    own(job, PLAIN, threshold=[7])
    job.plugin("algo/other.py", PLAIN.replace("    def __call__", "    built_by_check = False\n    def __call__"))
    job.modules[2]["url"] = "algo/other.py"
    assert main(["check", "-f", job.save()]) == 0
    assert "built" not in capfd.readouterr().out


@pytest.fixture
def shipped(job: Job) -> Job:
    """The project's own models, and a router to be named."""
    job.plugin("algo/shipped.py", SHIPPED)
    job.modules[:] = [
        {"type": "dataset_processor", "name": "DatasetProcessor", "url": "algo/shipped.py"},
        {"type": "edgemodel", "name": "EdgeModel", "url": "algo/shipped.py"},
        {"type": "cloudmodel", "name": "CloudModel", "url": "algo/shipped.py"},
        {"type": "hard_example_mining", "name": "CascadeRouter", "url": "algo/shipped.py"},
    ]
    job.hyperparameters(1, **API)
    job.hyperparameters(2, **API)
    return job


CASCADE = {"name": "CascadeRouter", "signal": "min_margin"}
BESIDE: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str]] = [
    ("CascadeRouter", {"signal": "min_margin"}, {}, {}, "signal min_margin looks at token probabilities: set logprobs"),
    ("CascadeRouter", {"signal": "min_margin"}, {"logprobs": True}, {}, ""),
    ("CascadeRouter", {"signal": "disagreement"}, {"logprobs": True}, {}, "set samples: 2 or more"),
    ("CascadeRouter", {"signal": "disagreement"}, {"samples": 2}, {}, ""),
    ("LatencyRouter", {}, {}, {}, "LatencyRouter needs an objective"),
    ("LatencyRouter", {}, {}, {"slo_latency": 2.0}, ""),
    ("LatencyRouter", {"router": CASCADE, "slo_latency": 1.0}, {}, {}, "set logprobs: true"),
]


@pytest.mark.parametrize(("router", "values", "edge", "processor", "message"), BESIDE)
def test_shipped_routers_check_the_other_modules(
    shipped: Job,
    capfd: pytest.CaptureFixture[str],
    router: str,
    values: dict[str, Any],
    edge: dict[str, Any],
    processor: dict[str, Any],
    message: str,
) -> None:
    shipped.modules[3]["name"] = router
    for place, more in ((0, processor), (1, {**{name: one[0] for name, one in API.items()}, **edge}), (3, values)):
        shipped.hyperparameters(place, **{name: [value] for name, value in more.items()})
    lines = errors(shipped, capfd, 2 if message else 0)
    assert [message in line for line in lines] == [True] * bool(message)
    if "signal" in values and message:
        assert f"algorithm.yaml:{shipped.line_of('algorithm.yaml', 'signal:')}: " in lines[0]
