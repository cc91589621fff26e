"""Other implementations in separate processes."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import peers
from bench.__main__ import _arguments
from bench.methods import measure, methods, ratios
from bench.options import Request
from ianvs_specdec.common.errors import UserError
from tests.support.folders import EDGE

WORKER = """
import json, sys, time
engine = json.loads(sys.stdin.readline())["engine"]
head = len(engine.get("speculative_config", ()))
print(json.dumps({"ready": {"memory": 7000000, "versions": {}}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    ends = {"time": time.monotonic() + 2, "started": time.monotonic() - 1}
    drafts = [[3, 1]] if head else None
    for more in ({"tokens": request["prompt"], "time": time.monotonic(), "finish": None}, {"tokens": [head], **ends}):
        print(json.dumps({"id": request["id"], "finish": "stop", "drafts": drafts, **more}), flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fake vLLM worker."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(peers, "VLLM_WORKER", script)
    return script


def options_of(folder: Path, *more: str):
    return _arguments(["--model", str(EDGE), "--threads", "1", "--out", str(folder / "out"), *more])


def test_a_worker_is_started_by_its_first_request(tmp_path: Path, worker: Path) -> None:
    options = options_of(tmp_path, "--vllm", sys.executable)
    (tmp_path / "head").mkdir()
    (tmp_path / "head" / "config.json").write_text(json.dumps({}))
    with ExitStack() as stack:
        plain = peers.vllm(options, None, 100, stack)
        with_head = peers.vllm(options, tmp_path / "head", 100, stack)
        assert (plain.memory(), plain.resident()) == (None, None)
        runs = [peer.decode([7, 8], 9, [2]) for peer in (plain, with_head)]
        assert plain.memory() == 7_000_000
        assert plain.resident() is None or 1e6 < plain.resident() < 1e9
        outputs, seconds = plain.decode_all([[1], [2], [3]], 2, 9, [2])
    assert [peer.name for peer in (plain, with_head)] == ["vLLM", "vLLM head"]
    assert [run.token_ids for run in runs] == [[7, 8, 0], [7, 8, 3]]
    assert [run.forwards - run.prefills for run in runs] == [2, 1]
    assert [(run.ttft, run.seconds) for run in runs] == [pytest.approx((1, 3), abs=0.5)] * 2
    assert (outputs, seconds < 30) == ([[1, 0], [2, 0], [3, 0]], True)
    assert ratios(["ours eagle head chain", "vLLM head"]) == [("ours eagle head chain", "vLLM head")]


def test_published_rows_have_baselines_and_ours(tmp_path: Path) -> None:
    options = options_of(tmp_path, "--official", str(tmp_path))
    with pytest.raises(UserError, match="name one with --eagle"):
        list(methods(options))
    rows = ["eagle-llm static", "eagle-llm chain of 7", "lade (5,7,7)", "lade (7,20,20)"]
    ours = ["ours eagle static", "ours eagle chain of 7", "ours lookahead (5,7,7)", "ours lookahead (7,20,20)"]
    found = ratios([*ours, *rows, "eagle-llm-env generate", "lade-env generate"])
    assert set(zip(ours, rows, strict=True)) < set(found)
    assert {("eagle-llm static", "eagle-llm-env generate"), ("lade (5,7,7)", "lade-env generate")} < set(found)
    assert all(method != baseline for method, baseline in found)
    with ExitStack() as stack, pytest.raises(UserError, match="`make bench-official` makes the environments"):
        peers.published(options, "lade", [2], stack)


def test_rows_are_interleaved_after_a_warm_up() -> None:
    calls: list[tuple[str, list[int]]] = []

    def entry(name):
        def decode(request):
            calls.append((name, request.ids))
            return SimpleNamespace(seconds=1.0, forwards=1)

        return SimpleNamespace(name=name, decode=decode)

    model = SimpleNamespace(register_forward_pre_hook=lambda count: SimpleNamespace(remove=int))
    requests = [Request([number], "") for number in (1, 2, 3)]
    runs = measure(model, [entry(name) for name in "ABC"], requests, 2, {})
    assert "".join(name for name, _ in calls[:6]) == "AABBCC"
    order = ["".join(name for name, _ in calls[i : i + 3]) for i in range(6, len(calls), 3)]
    assert order == ["ABC", "BCA", "CAB", "ABC", "BCA", "CAB"]
    assert [ids for _, ids in calls[6::3]] == [[1], [2], [3]] * 2
    assert [[len(repeats) for repeats in runs[name]] for name in "ABC"] == [[2, 2, 2]] * 3


def test_llama_cpp_has_our_output(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed (make test-llamacpp)")
    from ianvs_specdec.backends.specdec import AutoregressiveLLM
    from ianvs_specdec.common.types import Sampling

    options = options_of(tmp_path, "--dtype", "float32", "--llamacpp", sys.executable)
    chat = [{"role": "user", "content": "Count to 5."}]
    with AutoregressiveLLM(str(EDGE), dtype="float32") as ours:
        expected = ours.generate(chat, Sampling(max_tokens=24)).token_ids
        ids, _ = ours._chat.prompt(chat, Sampling())
    prompts = [[3, 4, 5], [6, 7], [8], [9, 10, 11, 12], [13, 14]]
    with ExitStack() as stack:
        file = peers.gguf(options, EDGE, "f32")
        peer = peers.llamacpp(options, file, "llama.cpp", 100, stack)
        runs = [peer.decode(ids, 24, [1]) for _ in range(2)]
        weights = 2 * (EDGE / "model.safetensors").stat().st_size
        # 100 positions are rounded up to 256: of 3 layers, keys and values of 128 numbers of 4 bytes.
        assert peer.memory() == pytest.approx(weights + 256 * 3 * 2 * 128 * 4, rel=0.01)
        assert peer.resident() > peer.memory()
        alone = [peer.decode(prompt, 12, [1]).token_ids for prompt in prompts]
        together, seconds = peer.decode_all(prompts, 2, 12, [1])
        assert seconds > 0 < peer.step(prompts[0], 2)
        small = peers.gguf(options, EDGE, "q4_0")
        assert small.stat().st_size < peers.gguf(options, EDGE, "q8_0").stat().st_size
        peers.llamacpp(options, small, "llama.cpp q4_0", 64, stack).start()
    assert [run.token_ids for run in runs] == [expected] * 2
    assert all(0 < run.ttft < run.seconds for run in runs)
    assert together == alone
