"""``specdec route calibrate``: signals are fitted to outcomes, answers are asked for once, no file is half-written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ianvs_specdec.commands.cli import main
from ianvs_specdec.commands.early_decision import NEVER, precise_threshold
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned import uncertainty
from ianvs_specdec.routing.outcomes.recorded import Outcomes, save_outcomes
from ianvs_specdec.routing.routers.cascade import CascadeRouter
from tests.backends.api.test_api_logprobs import streamed, token
from tests.support.api_server import ScriptedAPI, serving
from tests.support.paths import EXAMPLE

COUNT = 60
RANDOM = np.random.default_rng(3)
SURE = RANDOM.uniform(0.3, 0.99, COUNT)
"""How sure the edge is of its answer; it is right about as often."""
RIGHT = RANDOM.uniform(size=COUNT) < SURE
QUERIES = tuple(Query((f"Question {number}?",), id=str(number), scorer="choice") for number in range(COUNT))


def reply(prompt: str, number: int) -> bytes:
    place = int(prompt.split()[1].rstrip("?"))
    return streamed(token("The answer is ", 0.9), token("B", float(SURE[place])), token(".", 0.99))


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedAPI]:
    for name in ("RESULT_SAVED_URL", "IANVS_RUN_ID", "IANVS_FRESH", "IANVS_REPEAT"):
        monkeypatch.delenv(name, raising=False)
    with serving() as serve:
        yield serve(reply)


SKILLS = EXAMPLE / "models" / "router-skills"
Calibrate = Callable[..., int]


@pytest.fixture
def calibrate(tmp_path: Path, api: ScriptedAPI) -> Calibrate:
    """The command on outcomes of a cloud that is always right."""
    edge = np.asarray(RIGHT, dtype=np.float64)
    save_outcomes(tmp_path / "outcomes.jsonl", Outcomes(QUERIES, edge, np.ones(COUNT)))
    settings = {"model": "edge", "backend": "api", "api_base_url": api.url, "api_retries": 0}
    (tmp_path / "edge.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()))

    def run(*more: str, signals: tuple[str, ...] = ("answer_probability",)) -> int:
        named = [part for name in signals for part in ("--signal", name)]
        given = ["--outcomes", str(tmp_path / "outcomes.jsonl"), "--edge", str(tmp_path / "edge.yaml")]
        return main(["route", "calibrate", *given, *named, "-o", str(tmp_path / "fitted.json"), *more])

    return run


def test_the_file_is_what_the_router_wants(
    calibrate: Calibrate, api: ScriptedAPI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate("--cloud-share", "0.5") == 0
    told = capsys.readouterr().out
    assert "answer_probability: auroc" in told
    assert "calibrated: auroc" in told
    assert len(api.bodies) == COUNT
    assert all(body["logprobs"] for body in api.bodies)
    router = CascadeRouter(calibration=str(tmp_path / "fitted.json"))
    assert router.model.signals == ("answer_probability",)
    assert 0 < router.threshold < 1
    scores = [router.model.score({"answer_probability": 1 - p}) for p in sorted(SURE)]
    assert scores == sorted(scores, reverse=True)
    assert abs(np.mean([score >= router.threshold for score in scores]) - 0.5) < 0.1
    # A probability: where the edge is right as often as it is sure, the fit says what was said.
    assert np.mean(scores) == pytest.approx(1 - RIGHT.mean(), abs=0.02)
    report = json.loads((tmp_path / "fitted.json").read_text())["report"]
    assert (report["queries"], report["label"], report["cloud"]) == (COUNT, "hybrid", 1.0)


def test_what_the_first_tokens_say_is_fitted_too(
    calibrate: Calibrate, api: ScriptedAPI, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate("--after", "2", "--cloud-share", "0.5") == 0
    assert len(api.bodies) == COUNT
    # The letter is the second of three tokens, so that these two say what the whole answer does.
    told = capsys.readouterr().out
    assert "after 2 tokens: auroc" in told
    assert "would go to the cloud in any case" in told
    path = tmp_path / "fitted.json"
    router = CascadeRouter(calibration=str(path), decide_after=2)
    first = router.early
    assert first is not None
    assert first.model.slopes == router.model.slopes
    stopped = [first.model.score({"answer_probability": 1 - p}) >= first.model.threshold for p in SURE]
    report = json.loads(path.read_text())["report"]
    assert report["saved"] == pytest.approx(sum(stopped) / (3 * COUNT), abs=0.02)
    assert calibrate("--after", "3") == 2
    assert "no answer of the edge has more tokens" in capsys.readouterr().err
    assert calibrate("--after", "0") == 2
    assert "at least 1" in capsys.readouterr().err


def test_a_threshold_for_the_first_tokens_is_the_lowest_that_is_sure() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.7, 0.6, 0.5])
    agrees = np.array([True, True, True, True, False, True])
    assert precise_threshold(scores, agrees) == pytest.approx(0.65)
    assert precise_threshold(scores, np.array([True, True, True, False, True, True])) == pytest.approx(0.75)
    assert precise_threshold(scores, np.zeros(6, dtype=bool)) == NEVER
    assert precise_threshold(scores, np.ones(6, dtype=bool)) == pytest.approx(0.25)


def test_several_routers_are_signals_by_their_names(
    calibrate: Calibrate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [part for name in ("one", "other") for part in ("--router", f"{name}={SKILLS}")]
    signals = ("answer_probability", "one", "other")
    assert calibrate(*given, signals=signals) == 0
    folders = dict.fromkeys(("one", "other"), str(SKILLS))
    router = CascadeRouter(calibration=str(tmp_path / "fitted.json"), routers=folders)
    assert set(router.model.signals) == set(signals)
    capsys.readouterr()
    assert calibrate(*given[:2], "--router", f"one={SKILLS}", signals=signals) == 2
    assert "the same name" in capsys.readouterr().err
    assert calibrate(*given, signals=signals[:2]) == 2
    assert "add other to them" in capsys.readouterr().err


def test_nothing_is_asked_twice_and_the_result_is_the_same(
    calibrate: Calibrate, api: ScriptedAPI, tmp_path: Path
) -> None:
    assert calibrate() == 0
    first = (tmp_path / "fitted.json").read_bytes()
    assert calibrate() == 0
    assert len(api.bodies) == COUNT
    assert (tmp_path / "fitted.json").read_bytes() == first
    assert calibrate(signals=("answer_probability", "min_probability", "option_mismatch")) == 0
    assert len(api.bodies) == COUNT


@pytest.mark.parametrize(
    ("more", "signals", "message"),
    [
        ((), ("vibes",), "unknown signal 'vibes'"),
        ((), ("router",), "another router"),
        (("--folds", "1"), ("max_entropy",), "--folds must be from 2"),
        (("--edge-set", "samples=0"), ("max_entropy",), "--edge-set samples"),
        ((), ("disagreement",), "samples: 2 or more"),
    ],
)
def test_what_cannot_be_is_one_message_and_no_file(
    calibrate: Calibrate,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    signals: tuple[str, ...],
    message: str,
) -> None:
    assert calibrate(*more, signals=signals) == 2
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    assert not (tmp_path / "fitted.json").exists()


# the fit


def test_a_fit_finds_the_slopes_that_made_the_labels() -> None:
    generator = np.random.default_rng(0)
    doubts = {name: generator.uniform(0.02, 0.98, 20000) for name in ("one", "other", "noise")}
    slopes = {"one": 1.5, "other": 0.5}
    chances = uncertainty.scores(doubts, slopes, -0.7)
    labels = (generator.uniform(size=len(chances)) < chances).astype(np.float64)
    found, offset = uncertainty.fit(doubts, labels)
    assert found["one"] == pytest.approx(1.5, abs=0.15)
    assert found["other"] == pytest.approx(0.5, abs=0.1)
    assert found["noise"] == pytest.approx(0.0, abs=0.05)
    assert offset == pytest.approx(-0.7, abs=0.1)


def test_a_signal_that_says_the_contrary_is_left_out() -> None:
    generator = np.random.default_rng(1)
    right, labels = generator.uniform(size=400), np.zeros(400)
    labels[right > 0.5] = 1.0
    found, _ = uncertainty.fit({"right": right, "contrary": 1 - right**2}, labels)
    assert found["contrary"] == 0.0 < found["right"]
    with pytest.raises(UserError, match="nothing to learn"):
        uncertainty.fit({"contrary": 1 - right}, labels)


def test_every_query_is_scored_by_a_fit_to_others() -> None:
    doubts = {"a": np.array([0.1, 0.2, 0.3, 0.6, 0.7, 0.8])}
    labels = np.array([0.0, 1.0, 0.0, 1.0, 1.0, 1.0])
    folds = [np.array([0, 3]), np.array([1, 4]), np.array([2, 5])]
    held = uncertainty.cross_fitted(doubts, labels, folds)
    rest = np.array([1, 2, 4, 5])
    alone = uncertainty.fit({"a": doubts["a"][rest]}, labels[rest])
    assert held[[0, 3]] == pytest.approx(uncertainty.scores({"a": doubts["a"][[0, 3]]}, *alone))
