"""Events of the page ``/ui`` for a gateway's requests."""

from __future__ import annotations

from typing import Any

import pytest

from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Completion
from ianvs_specdec.routing.routers.cascade import CascadeRouter
from ianvs_specdec.serving.ui import Feed
from tests.serving.conftest import LONGEST
from tests.support.pages import events, requested, rows_of

from .conftest import Opens, Says, side


class BreaksOff(Says):
    def generate(self, messages: Any, sampling: Any, on_chunk: Any = None, hints: Any = None) -> Completion:
        on_chunk("half ", 1)
        on_chunk("an ", 1)
        self.go.wait(LONGEST)
        raise AnswerError("broken", [])


@pytest.mark.parametrize(("doubt", "answered", "cost"), [(0.1, "edge", 6), (2.0, "cloud", 9)])
def test_page_shows_cost_of_cascade(gate: Opens, doubt: float, answered: str, cost: float) -> None:
    edge, cloud = Says("from the edge", doubt), Says("from the cloud")
    sides = side("small", edge, logprobs=True, price_completion=2e6), side("large", cloud, price_completion=1e6)
    opened = gate(*sides, CascadeRouter("mean_probability", 0.5), first=True)
    opened.server.config.app.routes.extend(Feed(opened.gateway).routes())
    opened.says("an easy one")
    (row,) = rows_of(opened.address, 1)
    assert row["pieces"] == [["from ", 1], ["the ", 1], [answered, 1]]
    assert (row["routing"]["side"], row["routing"]["cost"]) == (answered, cost)


def test_page_drops_answer_of_failed_cloud(gate: Opens) -> None:
    edge, cloud = Says("edge"), BreaksOff("")
    cloud.go.clear()
    opened = gate(side("small", edge), side("large", cloud), fallback=LONGEST)
    opened.server.config.app.routes.extend(Feed(opened.gateway).routes())
    (connection,) = opened.chats(1, "a hard one")
    with requested(opened.address, "/ui/events") as page:
        told = (event for event in events(page) if "id" in event)
        half = next(event for event in told if event["at"] + len(event["pieces"]) == 2)
        cloud.go.set()
        whole = next(event for event in told if "end" in event)
    connection.getresponse().read()
    connection.close()
    assert (half["routing"]["side"], half["tokens"]) == ("cloud", 2)
    assert (whole["routing"]["side"], whole["at"], whole["pieces"], whole["tokens"]) == ("edge", 0, [["edge", 1]], 1)
    assert rows_of(opened.address, 1)[0]["pieces"] == [["edge", 1]]
