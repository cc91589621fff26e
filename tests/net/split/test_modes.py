"""The verifier may draft itself: the whole answer, or parts of it."""

from __future__ import annotations

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from tests.net.split.conftest import PROMPT
from tests.support.verifiers import Breaking, edge_of, loaded, verifying

GREEDY = Sampling(max_tokens=60)
DRAWN = Sampling(max_tokens=60, temperature=0.8, seed=7)
CUTS = (60, 250, 400)
"""Bytes: within the answer's first message, and twice after a connection was made anew. A whole answer takes more."""


@pytest.fixture(scope="module", params=["autoregressive", "draft_model"])
def running(request, folder):
    options = {"draft": str(folder), "acceptance": "coupled"} if request.param == "draft_model" else {}
    llm = loaded(folder, request.param, **options)
    with verifying(llm) as verifier:
        yield verifier
    llm.close()


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_a_streamed_answer_is_the_targets_own(folder, running, alone, sampling):
    drafter = drafters.create("draft_model", {"draft": folder})
    with edge_of(running.address, drafter, mode="stream") as edge:
        answer = edge.decode(PROMPT, sampling)
    assert answer.token_ids == alone(PROMPT, sampling)
    assert answer.split.streamed
    assert not answer.trace.steps


@pytest.mark.slow
def test_a_stream_that_breaks_is_resumed_in_its_mode(folder, running, alone):
    way, seen = Breaking(running.port), []
    drafter = drafters.create("draft_model", {"draft": folder})
    with edge_of(way.address, drafter, mode="stream") as edge:
        way.cut_after(*CUTS)
        answer = edge.decode(PROMPT, GREEDY, on_tokens=seen.extend)
    way.close()
    assert answer.token_ids == seen == alone(PROMPT, GREEDY)
    assert answer.split.breaks
