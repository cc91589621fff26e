"""A job with answers that nobody can compare, and what the leaderboard and the environment say of it."""

from __future__ import annotations

from pathlib import Path

from ianvs_specdec.report.collect import collect
from tests.support.counting_api import CountingAPI
from tests.support.harness import Workplace, questions
from tests.support.torch_path import BEST


def test_lossless_is_not_claimed_for_a_cloud_that_has_no_baseline(
    workplace: Workplace, api: CountingAPI, models: tuple[Path, Path]
) -> None:
    workplace.backends("autoregressive", cloud="api")
    workplace.settings("edge", model=str(models[0]), max_tokens=8)
    workplace.settings("cloud", model="cloud-model", api_base_url=api.url)
    workplace.algorithms("EdgeOnly", "RandomRouter")
    workplace.data(questions(10))
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    board = {router: row for (router, _), row in workplace.leaderboard().items()}
    edge, routed = board["EdgeOnly"], board["RandomRouter"]
    assert (edge["Lossless"], edge["Lossless Known"], edge["Queries"]) == ("100.0", "10.0", "10.0")
    known = float(routed["Lossless Known"])
    assert 0 < known < 10
    for name in ("Lossless", "Speedup", "Mean Accepted Tokens"):
        assert routed[name] == "", name
        assert float(routed[f"{name} Known"]) == known, name
    assert float(routed["Throughput"]) > 0, "what is known of all is there"

    cases = {case["router"]: case for case in collect(workplace.workspace)["cases"]}
    assert cases["RandomRouter"]["known"]["Lossless"] == [known, 10]
    assert "Lossless" not in cases["EdgeOnly"]["known"]

    environment = workplace.environment_of("RandomRouter", "autoregressive")
    assert environment["modules"]["edgemodel"]["target"] == BEST
    assert environment["modules"]["edgemodel"]["instructions"]
    assert environment["modules"]["cloudmodel"]["server"]
    assert environment["load"][0]["answers"] == 10
