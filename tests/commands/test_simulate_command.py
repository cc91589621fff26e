"""``specdec simulate`` and ``specdec profile``: files in and out, and one message for what is wrong."""

from __future__ import annotations

import json

import pytest

from ianvs_specdec.commands.cli import main
from tests.support.cost_tables import simple, written


@pytest.fixture
def table(tmp_path):
    return written(tmp_path, simple())


def simulated(table, tmp_path, *more, name="out.json", policy="fixed:2"):
    out = tmp_path / name
    arguments = ["--profile", str(table), "--policy", policy, "--edges", "3", "--hours", "0.01", "--out", str(out)]
    assert main(["simulate", *arguments, *more]) == 0
    return out


def test_the_same_seed_writes_the_same_bytes(table, tmp_path, capsys):
    more = ("--rate", "2", "--seed", "5", "--slo", "ttft=0.5,tpot=0.1", "--network", "0.01")
    first, again = (simulated(table, tmp_path, *more, name=name) for name in ("one.json", "two.json"))
    assert first.read_bytes() == again.read_bytes()
    found = json.loads(first.read_text())
    assert found["profile"]["emulated"]
    assert found["requests"]["completed"] > 10
    assert "(a stated machine)" in capsys.readouterr().out


def test_traces_are_drawn_from(table, tmp_path):
    steps = [{"drafted": 2, "accepted": 2, "emitted": 3, "verified": 3}] * 5
    traces = tmp_path / "decoded.jsonl"
    traces.write_text(json.dumps({"prompt": [1, 2], "output": [1] * 18, "steps": steps, "task": "code"}))
    found = json.loads(simulated(table, tmp_path, "--traces", str(traces), "--rate", "1").read_text())
    assert found["tokens_per_step"] > 2


def test_the_requests_of_a_trace_come_when_and_as_long_as_it_says(table, tmp_path):
    trace = tmp_path / "mooncake.jsonl"
    rows = [{"timestamp": 1000 * second, "input_length": 40, "output_length": 5} for second in range(50)]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # 36 seconds: what comes later in the trace is left out, and at a rate of its own it is squeezed.
    found = json.loads(simulated(table, tmp_path, "--arrivals", str(trace)).read_text())
    assert (found["requests"]["sent"], found["rate"], found["arrivals"]) == (36, 1.0, str(trace))
    assert found["tokens_per_second"] == pytest.approx(found["requests"]["completed"] * 5 / 36, rel=1e-6)
    squeezed = json.loads(simulated(table, tmp_path, "--arrivals", str(trace), "--rate", "0.5").read_text())
    assert squeezed["requests"]["sent"] == 18
    shorter = simulated(table, tmp_path, "--arrivals", str(trace), "--max-tokens", "2", "--prompt-tokens", "400")
    shorter = json.loads(shorter.read_text())
    assert shorter["tokens_per_second"] == pytest.approx(shorter["requests"]["completed"] * 2 / 36, rel=1e-6)
    assert shorter["ttft"]["p50"] > found["ttft"]["p50"]


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--policy", "fixd:3"], "unknown speculation length 'fixd'. Did you mean 'fixed'?"),
        (["--profile", "none.json"], "none.json: cannot be read"),
        (["--edges", "0"], "--edges: edges must be a whole number from 1 to 1000000, not '0'"),
        (["--arrivals", "poison"], "unknown --arrivals 'poison'. Did you mean 'poisson'?"),
        (["--slo", "tftt=1"], "--slo: unknown objective 'tftt'. Did you mean 'ttft'?"),
        (["--acceptance", "1.5"], "--acceptance: acceptance must be from 0 to 1, not 1.5"),
        (["--acceptance", "a=0.6,a=0.8"], "--acceptance: acceptance must give each value once"),
        (["--acceptance", "0.5", "--traces", "t.jsonl"], "exclude each other"),
        (["--out", "no/such/folder/out.json"], "the folder no/such/folder does not exist"),
    ],
)
def test_wrong_options_are_one_message_and_nothing_is_written(table, tmp_path, capsys, more, part):
    out = tmp_path / "out.json"
    arguments = ["simulate", "--profile", str(table), "--policy", "fixed:2", "--out", str(out), *more]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert part in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_the_policy_is_needed(table, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["simulate", "--profile", str(table), "--out", str(tmp_path / "out.json")])
    assert "the following arguments are required: --policy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "no model"),
        (["--seconds", "0"], "--seconds must be more than 0"),
        (["--model", "./none"], "--model: there is no model folder ./none"),
    ],
)
def test_what_cannot_be_profiled_is_told(tmp_path, capsys, arguments, part):
    out = tmp_path / "costs.json"
    assert main(["profile", "--out", str(out), *arguments]) == 2
    assert part in capsys.readouterr().err
    assert not out.exists()


def test_a_profile_needs_time_for_a_step(tiny_model, tmp_path, capsys):
    out = tmp_path / "costs.json"
    assert main(["profile", "--out", str(out), "--model", str(tiny_model), "--seconds", "1e-6"]) == 2
    assert "raise --seconds" in capsys.readouterr().err
    assert not out.exists()
