"""``specdec route label``: what both models' answers are worth, each asked for once, nothing half-written."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.routing.outcomes.recorded import load_outcomes
from tests.support import journals
from tests.support.api_server import ScriptedAPI, Serve, answer, refusal
from tests.support.labelling import Place, letters, question
from tests.support.models import build_model


def test_quality_costs_and_labels_of_each_query(place: Place, api: ScriptedAPI) -> None:
    rows, out, _ = place.label()
    assert [row["query"]["id"] for row in rows] == ["q0", "q1", "q2", "q3"]
    assert [(row["edge"], row["cloud"], row["label"]) for row in rows] == [(0, 1, 1), (1, 1, 0), (1, 1, 0), (0, 0, 0)]
    assert [row["cloud_cost"] for row in rows] == pytest.approx([(5 * 100 + 5 * 1000) / 1e6] * 4)
    assert "edge_cost" not in rows[0]
    assert "edge 50.00 %, cloud 75.00 %; cloud better in 25.0 %, edge better in 0.0 %, equal in 75.0 %" in out
    assert "label hybrid (epsilon 0): 0 in 75.0 %, 1 in 25.0 %; mean 0.250, entropy 0.81 bit" in out
    found = load_outcomes(place.out)
    assert (found.edge.tolist(), found.cloud.tolist(), found.groups) == ([0, 1, 1, 0], [1, 1, 1, 0], ["g"] * 4)


def test_labels_can_be_chosen_and_those_that_are_all_alike_are_left_out(place: Place, api: ScriptedAPI) -> None:
    assert [row["label"] for row in place.label("--label", "hard")[0]] == [1, 0, 0, 1]
    assert [row["label"] for row in place.label("--label", "gain")[0]] == [1, 0.5, 0.5, 0.5]
    assert len(api.bodies) == 8, "another label asks nothing again"
    place.questions(question(1), question(2))
    rows, out, _ = place.label()
    assert [(row["edge"], row["cloud"]) for row in rows] == [(1, 1), (1, 1)]
    assert not any("label" in row for row in rows)
    assert "no labels: all 2 queries have the hybrid label 0" in out


def test_samples_have_seeds_of_their_own_and_are_journaled(place: Place, serve: Serve) -> None:
    def reply(prompt: str, number: int) -> bytes:
        body = server.bodies[number]
        right = body["model"] == "cloud" or body["seed"] % 2 == 0
        return answer("B" if right else "C")

    server = serve(reply)
    place.settings(server, seed=10)
    place.questions(question(0), question(1))
    rows, _, _ = place.label("--samples", "3", "--temperature", "0.7")
    assert [(body["model"], body["seed"], body["temperature"]) for body in server.bodies] == [
        (side, 10 + number, 0.7 if number else 0.0) for side in ("edge", "cloud") for number in range(4) for _ in "01"
    ]
    assert [row["edge_samples"] for row in rows] == [[0, 1, 0]] * 2
    assert [row["cloud_samples"] for row in rows] == [[1, 1, 1]] * 2
    assert [row["edge"] for row in rows] == [1, 1]
    Journal._open.clear()
    place.label("--samples", "3", "--temperature", "0.7")
    assert len(server.bodies) == 16


@pytest.mark.parametrize(("concurrency", "number"), [(1, signal.SIGINT), (2, signal.SIGINT), (1, signal.SIGTERM)])
def test_ctrl_c_and_sigterm_keep_what_was_answered(
    place: Place, serve: Serve, concurrency: int, number: signal.Signals
) -> None:
    """The last of the edge's four queries, as many as are asked at a time, are kept waiting."""
    answered, waiting, released = 4 - concurrency, threading.Semaphore(0), threading.Event()

    def reply(prompt: str, number: int) -> bytes:
        if number >= answered:
            waiting.release()
            released.wait(60)
        return letters(server, prompt, number)

    server = serve(reply)
    place.settings(server)
    command = [sys.executable, "-m", "ianvs_specdec.commands.cli", *place.arguments("--concurrency", str(concurrency))]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert all(waiting.acquire(timeout=60) for _ in range(concurrency))
        running.send_signal(number)
        _, err = running.communicate(timeout=60)
        assert not released.is_set()
    finally:
        released.set()
        running.kill()
    assert running.returncode == 128 + number
    assert f"{answered} answers are stored in" in err
    assert err.splitlines()[-1] == "specdec route: interrupted"
    assert not place.out.exists()
    asked = len(server.bodies)
    rows, _, err = place.label()
    assert len(rows) == 4
    assert len(server.bodies) - asked == 8 - answered
    assert f"edge: 4 of 4 answers, {answered} from the journal" in err


def test_failures_leave_their_query_out_until_the_next_run(place: Place, serve: Serve) -> None:
    broken = True

    def reply(prompt: str, number: int) -> bytes:
        if broken and prompt == "Question 2?" and server.bodies[number]["model"] == "cloud":
            return refusal("500 Broken")
        return letters(server, prompt, number)

    server = serve(reply)
    place.settings(server)
    assert "500" in place.refused()
    place.settings(server, max_failures=1)
    rows, _, err = place.label()
    assert [row["query"]["id"] for row in rows] == ["q0", "q1", "q3"]
    assert "1 of 4 queries are left out: 1 without an answer of the cloud; the first: " in err
    broken, asked = False, len(server.bodies)
    rows, _, _ = place.label()
    assert (len(rows), len(server.bodies) - asked) == (4, 1)


def test_reference_similarity(place: Place, serve: Serve) -> None:
    from sacrebleu.metrics import CHRF

    texts = {"edge": "the bat sat", "cloud": "the cat sat"}
    server = serve(lambda prompt, number: answer(texts[server.bodies[number]["model"]]))
    place.settings(server)
    place.questions(question(0, {"references": ["the cat sat"]}, scorer="none"), question(1, "the dog", scorer="text"))
    rows, _, _ = place.label("--quality", "chrf")
    for side, text in texts.items():
        expected = [CHRF().sentence_score(text, [reference]).score / 100 for reference in ("the cat sat", "the dog")]
        assert [row[side] for row in rows] == pytest.approx(expected)
    rows, _, _ = place.label("--quality", "rouge-l")
    assert [row["edge"] for row in rows] == pytest.approx([2 / 3, 2 / 5])


def test_a_judges_ratings_become_shares(place: Place, serve: Serve) -> None:
    ratings = {"edge": "[[4]]", "cloud": "[[10]]"}

    def reply(prompt: str, number: int) -> bytes:
        model = server.bodies[number]["model"]
        return answer(ratings["cloud" if "by cloud" in prompt else "edge"] if model == "j" else f"by {model}")

    server = serve(reply)
    place.settings(server)
    place.questions(question(0, {}, scorer="judge", group="writing"))
    assert f"{place.data}:1: its scorer judge names no judge: give --scorer-set judge_model=NAME" in place.refused()
    judge = ("--scorer-set", "judge_model=j", "--scorer-set", f"judge_base_url={server.url}")
    rows, _, _ = place.label(*judge)
    assert (rows[0]["edge"], rows[0]["cloud"]) == pytest.approx((3 / 9, 1))
    asked = len(server.bodies)
    place.label(*judge)
    assert len(server.bodies) == asked == 4


@pytest.mark.slow
def test_the_clouds_back_end_may_be_the_edges_on_models_in_this_process(place: Place, serve: Serve) -> None:
    for seed, side in enumerate(("edge", "cloud")):
        folder = build_model(place.folder / side, seed=seed)
        backend = "PromptLookup" if side == "edge" else "same-as-edge"
        settings = f"model: {folder}\nbackend: {backend}\nmax_tokens: 4\ndtype: float32\nthreads: 1\n"
        settings += "truncate_prompts: true\n"
        (place.folder / f"{side}.yaml").write_text(settings)
    long = {"turns": ["word " * 20_000], "id": "long"}
    place.questions(question(0, "text", scorer="text"), {"question": long, "answer": "text"})
    rows, _, _ = place.label("--samples", "2")
    assert [len(row["edge_samples"]) for row in rows] == [2, 2]
    assert len(rows[1]["query"]["turns"][0]) == 100_000
    kept = journals.entries(place.out.with_suffix(".journal"))
    configurations = [entry["value"] for entry in kept if "model" in entry]
    assert {value["method"] for value in configurations} == {"prompt_lookup"}
    Journal._open.clear()
    again, _, err = place.label("--samples", "2")
    assert again == rows
    assert "cloud: 6 of 6 answers, 6 from the journal" in err


def test_a_finished_job_has_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support.workspace import Bench, choice, usual

    monkeypatch.chdir(tmp_path)
    bench = usual(Bench(tmp_path, [choice(number) for number in range(8)]))
    job, out = str(bench.folder), tmp_path / "outcomes.jsonl"
    assert main(["route", "label", "--job", job, "-o", str(out)]) == 0
    assert "edge 50.00 %, cloud 87.50 %" in capsys.readouterr().out
    assert load_outcomes(out).cloud.tolist() == [1, 1, 1, 1, 1, 1, 1, 0]
    out.unlink()
    asking: list[tuple[str, str]] = [("--edge", "x"), ("--samples", "2"), ("--scorer-set", "a=b"), ("--limit", "1")]
    for name, value in asking:
        assert main(["route", "label", "--job", job, "-o", str(out), name, value]) == 2
        assert f"{name} is for running models" in capsys.readouterr().err
    assert not out.exists()
