"""``bench.engine`` on a small shape."""

from __future__ import annotations

import json
import sys

import pytest

SMALL = "--shape tiny --device cpu --dtype float32 --threads 1 --prompt 8 --repeats 2 --engine torch".split()  # noqa: SIM905


@pytest.fixture(autouse=True)
def small_memory(monkeypatch):
    monkeypatch.setattr("bench.engine.LARGE", 1 << 16)


def test_a_run_on_the_cpu_prints_and_writes_everything(tmp_path, capsys):
    from bench.engine import main

    assert main([*SMALL, "--rows", "1,4", "--quantization", "none,int8", "--out", str(tmp_path / "deep")]) == 0
    report = json.loads((tmp_path / "deep" / "engine.json").read_text())
    names = ["ours float32, fused", "ours int8, fused"]
    for name in names:
        assert [len(seconds) for seconds in report["steps"][name].values()] == [2, 2, 2]
        assert list(report["steps"][name]) == ["prompt", "1", "4"]
    assert (report["targets"][names[0]], bool(report["environment"]["instructions"])) == ("fused", True)
    assert 2 * report["floors"][names[1]] < report["floors"][names[0]]
    assert "of the floor" in capsys.readouterr().out
    assert list((tmp_path / "deep").iterdir()) == [tmp_path / "deep" / "engine.json"]


def test_llama_cpp_computes_the_same_steps(tmp_path, capsys, monkeypatch):
    """With a fake worker."""
    from bench.engine import main

    script = tmp_path / "worker.py"
    script.write_text(
        "import json, sys\n"
        "sys.stdin.readline()\n"
        'print(json.dumps({"ready": {}}), flush=True)\n'
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        '    rows = request["sampling"]["rows"]\n'
        '    assert (len(request["prompt"]), rows in (0, 1, 2)) == (8, True)\n'
        '    print(json.dumps({"id": request["id"], "finish": "stop", "seconds": 1000.0 + rows}), flush=True)\n'
    )
    monkeypatch.setattr("bench.peers.LLAMACPP_WORKER", script)
    arguments = [*SMALL, "--rows", "1,2", "--llamacpp", sys.executable]
    assert main([*arguments, "--quantization", "none,int8", "--out", str(tmp_path / "out")]) == 0
    report = json.loads((tmp_path / "out" / "engine.json").read_text())
    assert report["beside"] == [["ours float32, fused", "llama.cpp f32"], ["ours int8, fused", "llama.cpp q8_0"]]
    assert report["steps"]["llama.cpp q8_0"] == {"prompt": [1000.0] * 2, "1": [1001.0] * 2, "2": [1002.0] * 2}
    assert "ours int8, fused / llama.cpp q8_0, autoregressive step: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--rows", "2,4"], "--rows must contain 1"),
        (["--quantization", "int3"], "'int3' is not one of none, int8, int4"),
    ],
)
def test_invalid_options(wrong, message, capsys):
    from bench.engine import main

    with pytest.raises(SystemExit):
        main(["--shape", "tiny", "--device", "cpu", *wrong])
    assert message in capsys.readouterr().err
