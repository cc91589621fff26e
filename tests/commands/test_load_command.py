"""``specdec load`` as it is called: from a YAML file and from the command line, one message for what is wrong, and
nothing half-written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ianvs_specdec.commands.cli import main
from tests.support.load_generator import Stub, data, guidellm, stub
from tests.support.paths import EXAMPLE, ROOT

__all__ = ["data", "guidellm", "stub"]


def message(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 2) -> str:
    assert main(["load", *arguments]) == code
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


@pytest.fixture
def asked(stub: Stub, data: Path) -> list[str]:
    arrivals = ["--rates", "2", "--duration", "5", "--arrivals", "constant", "--data", str(data)]
    return ["--url", stub.url, "--model", "m", *arrivals]


@pytest.mark.usefixtures("guidellm")
def test_a_sweep_leaves_its_files(asked: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a" / "sweep"
    assert main(["load", *asked, "--out", str(out), "--slo", "latency=9"]) == 0
    shown = capsys.readouterr()
    assert shown.err.endswith(f"{out}: sweep.json, sweep.csv, load.png\n")
    assert shown.out.splitlines()[-1].split()[:3] == ["as-served", "2", "10"]
    (row,) = json.loads((out / "sweep.json").read_text())
    assert (row["policy"], row["rate"], row["completed"], row["slo_goodput"]) == ("as-served", 2.0, 10, 2.0)
    assert (out / "load.png").read_bytes().startswith(b"\x89PNG")
    names = {path.name for path in next(path for path in (out / "rounds").iterdir() if path.is_dir()).iterdir()}
    assert names == {"round.json", "requests.jsonl", "samples.jsonl", "report.json", "guidellm.log"}


@pytest.mark.usefixtures("guidellm")
def test_a_yaml_file_says_the_same_and_the_command_line_overrules_it(
    stub: Stub, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "load.yaml", tmp_path / "out"
    file.write_text(
        f"url: {stub.url}\nmodel: m\nrates: [1, 2]\nduration: 5\narrivals: constant\ndata: {data}\nout: {out}\n"
        "slo: {ttft: 0.5, latency: 5}\n"
    )
    message(capsys, "-f", str(file), "--rates", "3", code=0)
    (row,) = json.loads((out / "sweep.json").read_text())
    assert (row["rate"], row["requests"], row["slo"]) == (3.0, 15, {"ttft": 0.5, "latency": 5.0})
    assert "other options (rates; rates: [3.0] there, [1.0, 2.0] here)" in message(capsys, "-f", str(file))


def test_the_examples_job_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("ianvs_specdec.load.sweep.run", lambda plan, out: asked.append((plan, out)) or [])
    monkeypatch.setattr("ianvs_specdec.load.output.to_png", lambda results: b"")
    assert main(["load", "-f", str(EXAMPLE / "load.yaml"), "--out", str(tmp_path)]) == 0
    ((plan, out),) = asked
    assert (plan.policies, plan.rates, out) == (("fixed:0", "fixed:4", "goodput"), (2.0, 8.0, 32.0), tmp_path)


def test_what_is_wrong_is_told_where_it_stands(
    asked: list[str], stub: Stub, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, out = tmp_path / "trace.csv", ["--out", str(tmp_path / "out")]
    trace.write_text("time,tokens\n1,2\n")
    for arguments, part in (
        ([*asked, "--rates", "0", *out], "--rates: rates must be numbers above 0, such as 1,2,4, not '0'"),
        ([*asked, "--slo", "tpto=1", *out], "--slo: unknown objective 'tpto'. Did you mean 'tpot'?"),
        ([*asked, "--arrivals", str(trace), *out], f"{trace}:2: the column 'TIMESTAMP' is missing"),
        ([*asked, "--policies", "fixed:0", *out], "--policies: policies goes with --settings, not with --url"),
        (asked, "--out DIR is missing"),
        (["--rates", "1", *out], "give --url of a running server"),
    ):
        error = message(capsys, *arguments)
        assert error.startswith("specdec load: ")
        assert error.count("\n") == 1
        assert part in error, arguments
    file = tmp_path / "load.yaml"
    for text, line, part in (
        (f"url: {stub.url}\nmodel: m\ndata: {data}\nrates: [1, 0]\n", 4, "not [1, 0]"),
        (f"settings: {data}\npolicies: [fixd:1]\ndata: {data}\nrates: 1\n", 2, "unknown speculation length 'fixd'"),
    ):
        file.write_text(text)
        error = message(capsys, "-f", str(file), *out)
        assert f"{file}:{line}: " in error
        assert part in error
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("guidellm")
def test_a_server_that_dies_is_one_message_and_what_is_there_is_kept(
    asked: list[str], stub: Stub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    stub.dies_after = 1
    error = message(capsys, *asked, "--rates", "1,2", "--out", str(out), code=1).splitlines()
    assert [line for line in error if line.startswith("specdec load:")] == error[-1:]
    assert "cannot be reached" in error[-1]
    assert f"finished rounds are stored in {out}; run the same command again to continue" in error[-1]
    assert [row["rate"] for row in json.loads((out / "sweep.json").read_text())] == [1.0]
