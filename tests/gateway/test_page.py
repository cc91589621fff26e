"""What the page ``/ui`` is told of a gateway's requests."""

from __future__ import annotations

import pytest

from ianvs_specdec.routing.routers.cascade import CascadeRouter
from ianvs_specdec.serving.ui import Feed
from tests.support.pages import rows_of

from .conftest import Opens, Says, side


@pytest.mark.parametrize(("doubt", "answered", "cost"), [(0.1, "edge", 6), (2.0, "cloud", 9)])
def test_a_cascade_tells_the_tokens_of_its_answer_and_what_both_sides_cost(
    gate: Opens, doubt: float, answered: str, cost: float
) -> None:
    edge, cloud = Says("from the edge", doubt), Says("from the cloud")
    sides = side("small", edge, logprobs=True, price_completion=2e6), side("large", cloud, price_completion=1e6)
    opened = gate(*sides, CascadeRouter("mean_probability", 0.5), first=True)
    opened.server.config.app.routes.extend(Feed(opened.gateway).routes())
    opened.says("an easy one")
    (row,) = rows_of("{}:{}".format(*opened.address), 1)
    assert row["pieces"] == [["from ", 1], ["the ", 1], [answered, 1]]
    assert (row["routing"]["side"], row["routing"]["cost"]) == (answered, cost)
