"""``specdec verifier`` and ``specdec decode --verifier``, in processes of their own, by hand as a user would."""

from __future__ import annotations

import json
import random
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from ianvs_specdec.backends.split.edge.session import Outage
from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Sampling
from tests.serving.conftest import LONGEST, Process
from tests.support.models import build_model
from tests.support.verifiers import Breaking, edge_of

TOKENS = 120
DRAWN = ("--temperature", "0.8")
PROMPTS = [list(range(first, first + 30)) for first in (64, 67, 70)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The target, and a draft model that is right for a while."""
    place = tmp_path_factory.mktemp("models")
    return build_model(place / "target"), build_model(place / "draft")


class Running(Process):
    """A verifier in a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        super().__init__(folder, ("verifier", "--port", "0", "--set", "threads=1", *arguments))
        self.port = int(self.address.rpartition(":")[2])


@contextmanager
def verifying(folder: Path, *arguments: str) -> Iterator[Running]:
    running = Running(folder, *arguments)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return file


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def alone(target: Path, prompts: Path, out: Path, *more: str) -> list[list[int]]:
    arguments = ["--model", str(target), "--prompts", str(prompts), "--out", str(out), "--threads", "1", *more]
    assert main(["decode", "--method", "autoregressive", "--max-new-tokens", str(TOKENS), *arguments]) == 0
    return [row["output"] for row in rows(out)]


def far(draft: Path, address: str, prompts: Path, out: Path, *more: str) -> int:
    arguments = ["--verifier", address, "--prompts", str(prompts), "--out", str(out), "--threads", "1", *more]
    given = ["decode", "--method", "draft_model", "--draft", str(draft), "--max-new-tokens", str(TOKENS), *arguments]
    return main(given)


def test_by_hand(folders, prompts, tmp_path, capsys):
    target, draft = folders
    settings = tmp_path / "cloud.yaml"
    settings.write_text(f"model: {target}\n")
    with verifying(tmp_path, "--settings", str(settings), "--metrics-port", "0") as running:
        assert far(draft, running.address, prompts, tmp_path / "far.jsonl", "--mode", "split", *DRAWN) == 0
        metrics = running.output.partition("metrics on ")[2].split()[0]
        with urllib.request.urlopen(metrics) as answer:
            assert "specdec_verifier_sessions_opened_total 3.0" in answer.read().decode()
        assert running.stop() == 0
    written = rows(tmp_path / "far.jsonl")
    coupled = ("--set", "acceptance=coupled")
    assert [row["output"] for row in written] == alone(target, prompts, tmp_path / "alone.jsonl", *coupled, *DRAWN)
    assert all(row["rounds"] == len(row["steps"]) and row["bytes_up"] > row["rounds"] for row in written)
    assert sum(row["hits"] for row in written) <= sum(row["ahead"] for row in written)


def test_a_verifier_that_stops_finishes_what_it_began_and_lets_nothing_new_in(folders, prompts, tmp_path):
    target, draft = folders
    expected = alone(target, prompts, tmp_path / "alone.jsonl")
    with (
        verifying(tmp_path, "--model", str(target)) as running,
        edge_of(running.address, draft, outage=Outage("fail", 0.1)) as edge,
    ):
        signals = iter([signal.SIGTERM])

        def stop(tokens: list[int]) -> None:
            for number in signals:
                running.process.send_signal(number)

        answer = edge.decode(PROMPTS[0], Sampling(max_tokens=TOKENS), on_tokens=stop)
        assert PROMPTS[0] + answer.token_ids == expected[0]
        with pytest.raises(AnswerError, match="no verifier for"):
            edge.decode(PROMPTS[1], Sampling(max_tokens=TOKENS))
        assert running.process.wait(LONGEST) == 0


KILLED = 3


@pytest.mark.slow
@pytest.mark.parametrize("sampled", [(), DRAWN], ids=["greedy", "drawn"])
def test_a_verifier_that_is_killed_again_and_again(folders, prompts, tmp_path, sampled):
    """No token is lost, doubled or changed."""
    target, draft = folders
    expected = alone(target, prompts, tmp_path / "alone.jsonl", "--set", "acceptance=coupled", *sampled)
    first = Running(tmp_path, "--model", str(target))
    dice, over, way = random.Random(5), threading.Event(), Breaking(first.port)
    running = [first]

    def kill() -> None:
        while not over.wait(0.2 + dice.random()):
            running[-1].end()
            way.cut()
            running.append(Running(tmp_path, "--model", str(target)))
            way.target = running[-1].port

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        while len(running) <= KILLED:
            out = tmp_path / f"far{len(list(tmp_path.iterdir()))}.jsonl"
            assert far(draft, way.address, prompts, out, *sampled) == 0
            assert [row["output"] for row in rows(out)] == expected
    finally:
        over.set()
        killer.join()
        running[-1].end()
        way.close()


REFUSALS = {
    "others can reach it": (["--host", "0.0.0.0"], "--tls-cert with --tls-key and --token-file"),
    "half a certificate": (["--tls-cert", "x"], "belong together"),
    "no token file": (["--token-file", "/nowhere"], "--token-file /nowhere"),
    "an empty token file": (["--token-file", "{empty}"], "--token-file"),
    "a short token": (["--token-file", "{short}"], "16 characters"),
    "another back end": (["--set", "backend=vllm"], "only our engine can"),
    "another acceptance": (["--set", "acceptance=typical"], "acceptance must be coupled"),
    "no sessions": (["--sessions", "0"], "--sessions must be from 1"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_what_a_verifier_cannot_do_is_said_before_anything_is_loaded(folders, capsys, tmp_path, what):
    arguments, message = REFUSALS[what]
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "short").write_text("a-secret-of-15-\n")
    files = {name: str(tmp_path / name) for name in ("empty", "short")}
    assert main(["verifier", "--model", str(folders[0]), *(each.format(**files) for each in arguments)]) == 2
    assert message in capsys.readouterr().err


EDGE_REFUSALS = {
    "another acceptance": (["--method", "prompt_lookup", "--set", "acceptance=rejection"], "it is coupled"),
    "no address": (["--method", "prompt_lookup", "--verifier", "here"], "--verifier must be written as"),
    "no token": (["--method", "prompt_lookup", "--token-file", "/nowhere"], "no token can be read from it"),
    "trees": (["--method", "prompt_lookup", "--trace"], "--trace"),
}


@pytest.mark.parametrize("what", EDGE_REFUSALS)
def test_what_an_edge_cannot_do_is_said_at_once(prompts, tmp_path, capsys, what):
    arguments, message = EDGE_REFUSALS[what]
    given = ["--verifier", "127.0.0.1:1", "--prompts", str(prompts), "--out", str(tmp_path / "out.jsonl"), *arguments]
    assert main(["decode", *given]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert len(told.splitlines()) == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_without_a_verifier_there_one_message_says_what_to_look_at(folders, prompts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ianvs_specdec.commands.remote_decode.FIRST_PATIENCE", 0.2)
    assert far(folders[1], "127.0.0.1:1", prompts, tmp_path / "out.jsonl") == 2
    assert "do both sides use TLS or none" in capsys.readouterr().err
