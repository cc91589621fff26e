"""Invalid hyperparameters of routers name their key."""

from __future__ import annotations

from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.routing.routers import router

PRICES = {"price_prompt": 1.0, "price_completion": 2.0}
FULL = {"slo_ttft": 1}
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("RandomRouter", {"ratio": 1.5}, "ratio", "ratio must be a number from 0 to 1, not 1.5"),
    ("RandomRouter", {"ratio": None}, "ratio", "ratio must not be null: leave it out for the default, 0.5"),
    ("BudgetRouter", {}, "cost_per_1000", "either cloud_share or cost_per_1000"),
    ("BudgetRouter", {"cloud_share": 0.2, "cost_per_1000": 1}, "cost_per_1000", "either cloud_share or cost_per_1000"),
    ("BudgetRouter", {"cost_per_1000": 1.0}, "cost_per_1000", "needs price_prompt or price_completion"),
    ("BudgetRouter", {"cloud_share": 0.2, "window": 9}, "window", "window must be a whole number from 10 to 100000"),
    ("BudgetRouter", {"cloud_share": 0.2, "router": "Budget"}, "router", "Did you mean 'BudgetRouter'"),
    ("LatencyRouter", {"slo_ttft": 0}, "slo_ttft", "a number above 0"),
    ("LatencyRouter", {**FULL, "percentile": 95}, "percentile", "from 0.5 to 0.999"),
    ("ResourceRouter", {}, "max_cpu", "needs a limit"),
    ("ResourceRouter", {"max_cpu": 200}, "max_cpu", "from 0 to 100"),
    ("ResourceRouter", {"max_cpu": 80, "required": 1}, "required", "true or false"),
    ("PrivacyRouter", {"patterns": {"x": "("}}, "patterns", "x"),
    ("PrivacyRouter", {"kinds": ["e-mail"]}, "kinds", "Did you mean 'email'"),
    ("PrivacyRouter", {"detector": {"language": "en"}}, "detector", "model is missing"),
    ("PrivacyRouter", {"detector": {"model": "m", "lang": "en"}}, "detector", "Did you mean 'language'"),
    ("CascadeRouter", {}, "signal", "needs a signal"),
    ("CascadeRouter", {"signal": "min_probabilty"}, "signal", "Did you mean 'min_probability'"),
    ("CascadeRouter", {"signal": ["max_entropy", "max_entropy"]}, "signal", "different"),
    ("CascadeRouter", {"calibration": "nowhere.json"}, "calibration", "nowhere.json"),
    ("CascadeRouter", {"signal": "router"}, "signal", "another router"),
    ("CascadeRouter", {"signal": "max_entropy", "router": "RandomRouter"}, "router", "add router"),
    ("LearnedRouter", {"path": "nowhere"}, "path", "there is no router.json"),
    ("LifelongRouter", {"feedback": {"prt": 1}}, "feedback", "Did you mean 'port'"),
    ("LifelongRouter", {"feedback": 3}, "feedback", "scorer, a file, or a mapping"),
    ("LifelongRouter", {"explore": 0.9}, "explore", "from 0 to 0.5"),
    ("LifelongRouter", {"replay": "missing.jsonl"}, "replay", "an existing file"),
    ("LifelongRouter", {"save_to": "."}, "save_to", "something other than a router"),
]


@pytest.mark.parametrize(("name", "hyperparameters", "key", "message"), WRONG)
def test_wrong_hyperparameters_name_their_key(
    path: str, name: str, hyperparameters: dict[str, Any], key: str, message: str
) -> None:
    given = {"path": path, **hyperparameters} if name == "LifelongRouter" else hyperparameters
    kind = router(name)
    for use in (kind.check_hyperparameters, lambda given: kind(**given)):
        with pytest.raises(UserError) as told:
            use(given)
        assert message in str(told.value)
        assert told.value.key == key
