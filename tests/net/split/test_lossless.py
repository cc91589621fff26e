"""An edge and a verifier write what the target writes alone."""

from __future__ import annotations

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from tests.net.split.conftest import PROMPT
from tests.support.verifiers import edge_of, verifying

GREEDY = Sampling(max_tokens=40)
DRAWN = Sampling(max_tokens=40, temperature=1.3, top_k=50, repetition_penalty=1.1, seed=7)


@pytest.fixture(scope="module")
def running(llm):
    with verifying(llm) as verifier:
        yield verifier


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(
    ("model", "branches", "in_flight"), [("folder", 1, 1), ("folder", 1, 4), ("wrong", 1, 4), ("folder", 3, 1)]
)
def test_draft_models(request, running, alone, sampling, model, branches, in_flight):
    drafter = drafters.create("draft_model", {"draft": request.getfixturevalue(model), "branches": branches})
    with edge_of(running.address, drafter, in_flight=in_flight) as edge:
        answer = edge.decode(PROMPT, sampling)
    assert answer.token_ids == alone(PROMPT, sampling)
    accepted = sum(step.accepted for step in answer.trace.steps)
    assert accepted > 20 if model == "folder" else accepted < 20
