"""The mode inference-then-mining with every router."""

from __future__ import annotations

import shutil

from tests.support.counting_api import CountingAPI
from tests.support.harness import ALGORITHMS, Workplace, questions


def test_every_router_can_decide_after_the_edge_has_answered(workplace: Workplace, api: CountingAPI) -> None:
    workplace.on_api(api.url)
    workplace.data(questions(8, 1))
    before = workplace.ianvs()
    assert before.code == 0, before.output
    early = {router: workplace.answers(router, "api") for router in ALGORITHMS}

    shutil.rmtree(workplace.workspace / "rank")  # it keeps earlier runs' rows, and has no column for the mode
    workplace.testenv(hard_example_mining_mode="inference-then-mining")
    after = workplace.ianvs()
    assert after.code == 0, after.output
    for router in ALGORITHMS:
        late = workplace.answers(router, "api")
        for row, earlier in zip(late, early[router], strict=True):
            assert row["is_hard"] == earlier["is_hard"]
            assert row["result"]["completion"] == earlier["result"]["completion"]
            assert row["result"]["routing"]["router"] == router
            assert row["edge"] is not None
            assert (row["cloud"] is not None) == row["is_hard"]
    assert len(api.asked) == 2 * (8 + 2)
