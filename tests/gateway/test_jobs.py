"""A served job decides and answers as its test case; what cannot be served is an error."""

from __future__ import annotations

import argparse
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("core.cmd.benchmarking", reason="needs the ianvs command: pip install -e host")

from ianvs_specdec.commands import serve
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.gateway.case import read_case
from tests.serving.conftest import serving
from tests.support.harness import EXAMPLE, Workplace, questions

JOB = f"examples/{EXAMPLE.name}/benchmarkingjob.yaml"


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workplace:
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    place = Workplace(tmp_path / "work", tmp_path / "home")
    (place.example / "models").symlink_to(EXAMPLE / "models")
    shutil.copy(EXAMPLE / "benchmarkingjob.yaml", place.example)
    place.data(questions(12))
    monkeypatch.chdir(place.root)
    return place


@pytest.mark.parametrize(
    ("router", "count"),
    [
        pytest.param("LearnedRouter", 12),
        pytest.param("CascadeRouter", 12, marks=pytest.mark.slow),
        pytest.param("LearnedRouter", 352, marks=pytest.mark.slow),
    ],
)
def test_gateway_equals_test_case(workplace: Workplace, router: str, count: int) -> None:
    workplace.algorithms(router)
    workplace.backends("EagleSpecDec")
    workplace.data(rows := questions(count))
    ran = workplace.ianvs()
    assert ran.code == 0, ran.output
    case = workplace.answers(router, "EagleSpecDec")
    before = {path: path.stat().st_mtime_ns for path in workplace.root.rglob("*") if path.suffix != ".txt"}
    with serving(workplace.root, "-f", JOB) as server, ThreadPoolExecutor(8) as clients:

        def ask(row: dict[str, Any]) -> dict[str, Any]:
            (text,) = row["question"]["turns"]
            return server.chat({"model": "router", "messages": [{"role": "user", "content": text}]})[2]

        answers = list(clients.map(ask, rows))
        metrics = server.metrics()
        output = server.output
    told = [
        (one["routing"]["score"], one["routing"]["side"], one["choices"][0]["message"]["content"]) for one in answers
    ]
    sides = ["cloud" if row["is_hard"] else "edge" for row in case]
    assert len(case) == count
    assert told == [
        (row["result"]["routing"]["score"], side, row["result"]["completion"])
        for row, side in zip(case, sides, strict=True)
    ]
    assert 0 < metrics["router_decisions_total.cloud"] == sides.count("cloud") < count
    # Nothing of it is written down.
    assert before == {path: path.stat().st_mtime_ns for path in workplace.root.rglob("*") if path.suffix != ".txt"}
    assert not any(row["question"]["turns"][0][:30] in output for row in rows)


def fault(algorithm: str | None, **chosen: Any) -> str:
    with pytest.raises(UserError) as raised:
        read_case(JOB, algorithm, chosen)
    return str(raised.value)


def test_selection_of_test_cases(workplace: Workplace) -> None:
    text = (workplace.example / "benchmarkingjob.yaml").read_text(encoding="utf-8")
    assert "select one with --algorithm: edge-only, cloud-only, random-router" in fault(None)
    assert "Did you mean 'edge-only'?" in fault("edge-onyl")
    assert "OracleRouter needs reference answers" in fault("oracle-router", **{"edgemodel-backend": "autoregressive"})
    several = fault("edge-only")
    assert "edge-only has 2 test cases; choose one" in several
    assert "--set 'edgemodel-backend=autoregressive' or --set 'edgemodel-backend=PromptLookup'" in several
    assert "and 0 have these values; choose one" in fault("edge-only", **{"edgemodel-backend": "PromptLokup"})
    assert "Did you mean 'edgemodel-backend'?" in fault("edge-only", **{"edgemodel-backends": "PromptLookup"})
    case = read_case(JOB, "edge-only", {"edgemodel-backend": "PromptLookup"})
    assert [one.backend for one in case.sides.values()] == ["PromptLookup", "PromptLookup"]
    workplace.backends("PromptLookup")
    assert "edge-only has only one test case: omit --set" in fault("edge-only", **{"edgemodel-backend": "PromptLookup"})
    (workplace.example / "benchmarkingjob.yaml").write_text(text.replace("algorithms:", "algoritms:"), encoding="utf-8")
    assert "benchmarkingjob.yaml:" in fault("edge-only")


def test_unsupported_edge_settings(workplace: Workplace) -> None:
    workplace.algorithms("CascadeRouter")
    workplace.backends("PromptLookup")
    file = workplace.routing / "cascade_router.yaml"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace("              - true\n", "              - false\n", 1), encoding="utf-8")
    assert "set logprobs: true in the settings of the edge model" in fault(None)
    file.write_text(text.replace("        - backend:", "        - samples: {values: [3]}\n        - backend:", 1))
    assert "samples of the edge model" in fault(None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-f", JOB, "--model", "m"], "--model does not go with -f"),
        (["-f", JOB, "--truncate-prompts"], "--truncate-prompts does not go with -f"),
        (["--model", "m", "--fallback", "3"], "--fallback is for the test case of a job"),
        (["-f", JOB, "--fallback", "0"], "--fallback must be more than 0"),
    ],
)
def test_incompatible_options(arguments: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    with pytest.raises(UserError, match=message):
        serve.run(parser.parse_args(arguments))


def test_concurrency_of_sequential_back_end(workplace: Workplace) -> None:
    workplace.algorithms("LearnedRouter")
    workplace.backends("huggingface")
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    with pytest.raises(UserError, match="--concurrency 2: the back end huggingface takes one request at a time"):
        serve.run(parser.parse_args(["-f", JOB, "--port", "0", "--concurrency", "2"]))
