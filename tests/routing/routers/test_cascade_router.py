"""The cascade: what each signal makes of an answer, what is escalated, and what it says when it cannot look."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Query, Trace
from ianvs_specdec.plugin.response import Attempt, response_of, turn_of
from ianvs_specdec.records.response import Response
from ianvs_specdec.routing.learned.uncertainty import UncertaintyModel
from ianvs_specdec.routing.routers.cascade import CascadeRouter
from ianvs_specdec.routing.routers.signals import SIGNALS

QUESTION = "Which river is it?\nA. the Far North\nB. North\nC. the Stirn\nD. 12"
Tokens = list[tuple[str, float, float, float]]
"""Text, probability, entropy, margin."""
SURE: Tokens = [("It is ", 0.9, 0.4, 0.8), ("the Stirn ", 0.5, 1.0, 0.1), ("(", 1.0, 0.0, 1.0), ("C", 0.8, 0.6, 0.7)]


def turn(tokens: Tokens | None, text: str = "") -> Completion:
    trace = Trace([(0.1, 1)])
    if tokens is not None:
        text = "".join(piece for piece, *_ in tokens)
        trace.confidence = [(math.log(p), entropy, margin) for _, p, entropy, margin in tokens]
        trace.characters = [len(piece) for piece, *_ in tokens]
    return Completion(text, [1], 5, 1, "stop", trace)


def attempt(*completions: Completion) -> Attempt:
    details = {"key": "k", "replayed": False, "cached": False, "hardware": "h", "baseline": None}
    return Attempt(list(completions), [turn_of(completion, **details) for completion in completions])


def answered(*completions: Completion, samples: list[Attempt] | None = None, scorer: str = "choice") -> Response:
    asked = {"turns": [QUESTION] * len(completions), "scorer": scorer}
    own = attempt(*completions)
    query = Query(tuple(asked["turns"]), scorer=scorer)
    response = response_of(query, own.completions, own.turns, samples or [], side="edge", cost=None, routing=None)
    response.row = {"query": asked, "gold": "C", "index": 0}
    return response


def doubt(signal: str, *completions: Completion, **details: Any) -> float:
    return SIGNALS[signal](answered(*completions, **details))


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        ("mean_probability", 1 - 0.8),
        ("min_probability", 0.5),
        ("sequence_probability", -math.log(0.36) / (1 - math.log(0.36))),
        ("mean_entropy", 1 - math.exp(-0.5)),
        ("max_entropy", 1 - math.exp(-1)),
        ("mean_margin", 1 - 0.65),
        ("min_margin", 0.9),
        ("answer_probability", 0.2),
        ("option_mismatch", 0.0),
    ],
)
def test_what_signals_make_of_tokens(signal: str, expected: float) -> None:
    assert doubt(signal, turn(SURE)) == pytest.approx(expected, abs=1e-4)


def test_the_answer_s_probability_is_that_of_its_last_place() -> None:
    tokens: Tokens = [("Not ", 0.1, 0, 0), ("D", 0.3, 0, 0), (", I thought, but the answer is (", 0.3, 0, 0)]
    tokens += [("D", 0.6, 0, 0), (").", 0.2, 0, 0)]
    assert doubt("answer_probability", turn(tokens)) == pytest.approx(0.4, abs=1e-4)
    number: Tokens = [("3+9=", 0.1, 0, 0), ("1", 0.5, 0, 0), (",2", 0.5, 0, 0), ("00", 0.8, 0, 0), (".", 0.1, 0, 0)]
    assert doubt("answer_probability", turn(number), scorer="number") == pytest.approx(0.8, abs=1e-4)
    assert doubt("answer_probability", turn(SURE), scorer="text") == pytest.approx(0.2, abs=1e-4)
    assert doubt("answer_probability", turn([("who knows", 0.9, 0.1, 0.8)])) == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is North (C).", 1.0),
        ("It is the far north (A).", 0.0),
        ("It is the Far North (B).", 1.0),
        ("North? No, the Stirn (C).", 0.0),
        ("It is 120 (D).", 0.5),
        ("(D)", 0.5),
        ("who knows", 1.0),
    ],
)
def test_the_words_and_the_letter_are_to_name_the_same_option(text: str, expected: float) -> None:
    assert doubt("option_mismatch", turn(None, text)) == expected


def test_disagreement_is_the_share_of_samples_with_another_answer() -> None:
    letters = [attempt(turn(None, f"The answer is {letter}.")) for letter in "CCDA"]
    assert doubt("disagreement", turn(SURE), samples=letters) == 0.5
    failed = Attempt(error=None)
    response = answered(turn(SURE), samples=[*letters[:1], failed])
    response["samples"][1]["error"] = "no answer"
    assert SIGNALS["disagreement"](response) == 0.0
    response["samples"][0]["error"] = "no answer"
    assert SIGNALS["disagreement"](response) == 1.0


def test_whole_texts_disagree_as_far_as_they_differ() -> None:
    main = [turn(None, "a river runs here"), turn(None, "and there")]
    same, near, far = (
        attempt(turn(None, first), turn(None, "and there"))
        for first in ("a river runs here", "a river runs there", "0123456789")
    )
    doubts = [doubt("disagreement", *main, samples=[other], scorer="text") for other in (same, near, far)]
    assert doubts[0] == 0.0 < doubts[1] < doubts[2]


def test_thoughts_do_not_count_as_the_answers_words() -> None:
    thought = "<think>the Far North (A)? Or the Stirn?</think>"
    assert doubt("option_mismatch", turn(None, f"{thought}It is the Far North (C)")) == 1.0
    assert doubt("option_mismatch", turn(None, f"{thought}It is (C)")) == 0.5
    others = [attempt(turn(None, f"<think>0123456789</think>{text}")) for text in ("a river", "a river")]
    assert doubt("disagreement", turn(None, f"{thought}a river"), samples=others, scorer="text") == 0.0


def test_what_reaches_the_threshold_goes_to_the_cloud() -> None:
    response = answered(turn(SURE))
    assert CascadeRouter("min_probability", threshold=0.5)(response)
    assert not CascadeRouter("min_probability", threshold=0.51)(response)
    routing = response["routing"]
    assert routing == response.row["routing"]
    assert (routing["router"], routing["hard"]) == ("CascadeRouter", False)
    assert routing["score"] == routing["doubts"]["min_probability"] == pytest.approx(0.5, abs=1e-4)
    assert routing["seconds"] > 0


def test_a_constraint_whose_decision_would_not_count_is_refused() -> None:
    wrong: dict[str, Any] = {"signal": ["min_probability", "router"], "router": "PrivacyRouter"}
    for build in (CascadeRouter.check_hyperparameters, lambda given: CascadeRouter(**given)):
        with pytest.raises(UserError, match="under router: of PrivacyRouter") as told:
            build(wrong)
        assert told.value.key == "router"


def test_a_query_without_a_whole_answer_goes_to_the_cloud() -> None:
    response = answered(turn(SURE))
    response["error"] = "the server was gone"
    assert CascadeRouter("min_probability", threshold=1.0)(response)
    assert response["routing"]["reason"]


def test_a_fitted_doubt_is_a_probability_and_knows_its_threshold(tmp_path: Path) -> None:
    path = tmp_path / "fitted.json"
    UncertaintyModel(
        ("min_probability", "option_mismatch"), {"min_probability": 2.0, "option_mismatch": 0.5}, -1.0, 0.25
    ).save(path)
    router = CascadeRouter(calibration=str(path))
    assert router.threshold == 0.25
    assert CascadeRouter(calibration=str(path), threshold=0.6).threshold == 0.6
    expected = 1 / (1 + math.exp(-(2 * 0.0 + 0.5 * math.log(1e-4 / (1 - 1e-4)) - 1)))
    assert router.score_row(answered(turn(SURE))) == pytest.approx(expected, abs=1e-4)


def test_where_no_edge_model_could_be_asked_one_message_says_so() -> None:
    with pytest.raises(UserError, match="the edge's answer"):
        CascadeRouter("mean_entropy")({"query": "q", "gold": "B", "index": 0})


def test_answers_without_probabilities_say_what_to_set() -> None:
    response = answered(turn(None, "The answer is B."))
    with pytest.raises(UserError, match="logprobs: true"):
        CascadeRouter("mean_entropy")(response)
    with pytest.raises(UserError, match="samples: 2 or more"):
        CascadeRouter("disagreement")(response)
    assert CascadeRouter("option_mismatch").score_row(response) == 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"slopes": {}},
        {"slopes": {"max_entropy": -1.0}},
        {"offset": float("nan")},
        {"threshold": 1.5},
    ],
)
def test_a_calibration_that_makes_no_sense_is_one_message(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "c.json"
    whole = {"format": 1, "slopes": {"max_entropy": 1.0}, "offset": 0.0, "threshold": 0.5}
    path.write_text(json.dumps(whole))
    assert CascadeRouter(calibration=str(path)).threshold == 0.5
    with pytest.raises(UserError, match="other signals") as error:
        CascadeRouter("mean_entropy", calibration=str(path))
    path.write_text(json.dumps({**whole, **change}))
    with pytest.raises(UserError, match=r"c\.json: not a file") as error:
        CascadeRouter(calibration=str(path))
    assert error.value.key == "calibration"
    path.write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        CascadeRouter(calibration=str(path))
