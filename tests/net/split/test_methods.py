"""Split decoding is lossless with all methods that need only tokens, in all modes, with many edges."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.backends.split.edge.connection import Access, Connection
from ianvs_specdec.backends.split.edge.settings import EdgeSettings, remote_target
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.datastore import Datastore
from tests.net.split.conftest import PROMPT
from tests.support.split_client import Client, opening
from tests.support.verifiers import PATIENCE, Breaking, edge_of, loaded, verifying

GREEDY = Sampling(max_tokens=40)
DRAWN = Sampling(max_tokens=40, temperature=1.3, top_k=50, repetition_penalty=1.1, seed=7)
CUTS = (60, 250, 400)
"""Bytes: within the answer's first message, and twice after a connection was made anew. A whole answer takes more."""


@pytest.fixture(scope="module")
def running(llm):
    with verifying(llm) as verifier:
        yield verifier


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("model", "branches", "in_flight"), [("folder", 1, 1), ("wrong", 1, 4), ("folder", 3, 1)])
def test_draft_model(request, running, alone, sampling, model, branches, in_flight):
    drafter = drafters.create("draft_model", {"draft": request.getfixturevalue(model), "branches": branches})
    with edge_of(running.address, drafter, in_flight=in_flight) as edge:
        answer = edge.decode(PROMPT, sampling)
    assert answer.token_ids == alone(PROMPT, sampling)
    accepted = sum(step.accepted for step in answer.trace.steps)
    assert accepted > 20 if model == "folder" else accepted < 20


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("method", ["autoregressive", "draft_model"])
def test_stream_mode_resumes_after_breaks(folder, alone, method, sampling):
    options = {"draft": str(folder), "acceptance": "coupled"} if method == "draft_model" else {}
    llm, seen = loaded(folder, method, **options), []
    with verifying(llm) as verifier:
        way = Breaking(verifier.port)
        with edge_of(way.address, folder, mode="stream") as edge:
            way.cut_after(*CUTS)
            answer = edge.decode(PROMPT, sampling, on_tokens=seen.extend)
        way.close()
    llm.close()
    assert answer.token_ids == seen == alone(PROMPT, sampling)
    assert answer.split.streamed
    assert answer.split.breaks
    assert not answer.trace.steps


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("method", [name for name, known in drafters.METHODS.items() if known.tokens_only])
def test_methods_that_need_tokens_only(folder, running, alone, method, sampling, tmp_path):
    whole = alone(PROMPT, sampling)
    settings = {"draft": folder} if method == "draft_model" else {}
    if method == "rest":
        settings["datastore"] = tmp_path / "datastore"
        Datastore.build([PROMPT + whole], running.served.target.vocabulary).save(tmp_path / "datastore")
    drafter = drafters.create(method, settings)
    with edge_of(running.address, drafter, length=8, in_flight=4) as edge:
        answer = edge.decode(PROMPT, sampling, prediction=whole if method == "predicted_output" else ())
    assert answer.token_ids == whole
    if method in ("draft_model", "rest", "predicted_output"):
        assert sum(step.accepted for step in answer.trace.steps) > 20


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_draft_model_with_another_tokenizer(folder, running, alone, sampling, tmp_path):
    """The edge writes its text in the target's tokens. It cannot finish an answer alone."""
    draft, changed = tmp_path / "draft", tmp_path / "draft" / "tokenizer.json"
    shutil.copytree(folder, draft)
    tokenizer = json.loads(changed.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {token: number and 258 - number for token, number in vocabulary.items()}
    tokenizer["added_tokens"][1]["id"] = 257
    changed.write_text(json.dumps(tokenizer))
    settings = {"method": "draft_model", "options": {"draft": str(draft)}, "mode": "split"}
    with contextlib.closing(Connection(Access(running.address))) as connection:
        model = connection.describe(PATIENCE)
        target = remote_target(model, folder, "float32")
        answer = EdgeSettings.parse(settings).edge(connection, model, target).decode(PROMPT, sampling)
        with pytest.raises(UserError, match="cannot finish its answers; choose wait or fail"):
            EdgeSettings.parse({**settings, "outage": "edge"}).edge(connection, model, target)
    assert answer.token_ids == alone(PROMPT, sampling)
    assert sum(step.drafted for step in answer.trace.steps)


def test_many_edges_share_the_steps(folder, running, alone):
    prompts = [[*PROMPT, last] for last in range(6)]
    before = running.served.batcher.occupancy.counters
    drafter = drafters.create("draft_model", {"draft": folder})

    def decode(prompt):
        with edge_of(running.address, drafter.fork()) as edge:
            return edge.decode(prompt, DRAWN).token_ids

    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = list(pool.map(decode, prompts))
    assert answers == [alone(prompt, DRAWN) for prompt in prompts]
    done = running.served.batcher.occupancy.counters
    assert done.steps - before.steps < done.verifications - before.verifications + len(prompts)


def counted_steps(running):
    """The engine's steps, once there are no more: a client hears of a step before it is counted."""
    before, now = -1, running.served.batcher.occupancy.counters.steps
    while now != before:
        time.sleep(0.05)
        before, now = now, running.served.batcher.occupancy.counters.steps
    return now


def test_waiting_session_skips_steps(folder, running, alone):
    silent = Client(running.address).say(opening())
    silent.hear()
    silent.hear()
    steps = counted_steps(running)
    with edge_of(running.address, folder) as edge:
        answer = edge.decode(PROMPT, GREEDY)
    # A step for the prompt, and one for each round.
    assert counted_steps(running) - steps == 1 + len(answer.trace.steps)
    silent.close()


def test_verifier_metrics(folder, running):
    rounds, opened = running.sample("rounds_total"), running.sample("sessions_opened_total")
    with edge_of(running.address, folder) as edge:
        answer = edge.decode(PROMPT, GREEDY)
    assert running.sample("rounds_total") - rounds == len(answer.trace.steps)
    assert running.sample("sessions_opened_total") - opened == 1
    assert running.sample("round_seconds_count") == running.sample("rounds_total")


def test_edge_follows_the_verifiers_length(folder, llm, alone):
    with verifying(llm, length="fixed:2") as verifier, edge_of(verifier.address, folder, length=6) as edge:
        answer = edge.decode(PROMPT, GREEDY)
    assert answer.token_ids == alone(PROMPT, GREEDY)
    drafted = [step.drafted for step in answer.trace.steps]
    assert drafted[0] == 6
    assert set(drafted[1:-1]) == {2}


@pytest.mark.parametrize("policy", ["goodput", "table:[[1,4,3]]", "0"])
def test_any_length_of_the_verifier_is_lossless(wrong, llm, alone, policy):
    with verifying(llm, length=policy) as verifier, edge_of(verifier.address, wrong, in_flight=4) as edge:
        assert edge.decode(PROMPT, GREEDY).token_ids == alone(PROMPT, GREEDY)
