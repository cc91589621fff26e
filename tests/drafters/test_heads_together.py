"""Heads draft for many requests in the same steps: each gets what it would get alone."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.eagle.head import EagleHead
from ianvs_specdec.engine import Context, TokenTree
from ianvs_specdec.engine.loop import decode
from ianvs_specdec.engine.request import Request
from ianvs_specdec.targets.registry import target_of
from tests.drafters import test_medusa
from tests.drafters.eagle_heads import ENGINES, PROMPT, save_heads, wide
from tests.drafters.eagle_oracle import HIDDEN, VOCABULARY
from tests.support.one_sequence import OneSequence
from tests.support.requests import engine_of

PROMPTS = [PROMPT, [5], [7, 7, 11], PROMPT[::-1]]
SAMPLING = [
    Sampling(max_tokens=14),
    Sampling(max_tokens=9, repetition_penalty=1.3),
    Sampling(max_tokens=12, temperature=0.9, seed=3),
    Sampling(max_tokens=16, temperature=0.7, top_p=0.9, seed=4),
]
METHODS = [
    ("eagle", {"tree": "dynamic", "total_tokens": 14, "depth": 3, "eagle_topk": 4}),
    ("eagle", {"tree": "static"}),
    ("eagle", {"tree": "chain"}),
    ("eagle3", {"tree": "dynamic", "total_tokens": 14, "depth": 3, "eagle_topk": 4}),
    ("eagle3", {"tree": "chain"}),
    ("medusa", {"tree": "dynamic"}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = save_heads(tmp_path_factory.mktemp("heads"))
    test_medusa.save(root / "medusa", test_medusa.random_heads(hidden=HIDDEN, vocabulary=VOCABULARY))
    return root


@pytest.fixture(scope="module")
def torch_target():
    """In float64, where rounding of more rows at a time decides nothing."""
    return target_of(wide().double(), engine="torch")


@pytest.fixture(scope="module", params=ENGINES)
def target(request, torch_target):
    if request.param == "torch":
        return torch_target
    return target_of(wide().to(torch.bfloat16), engine="native")


def method(folder, label, options):
    return drafters.create("medusa" if label == "medusa" else "eagle", {"head": folder / label, **options})


def outcome(trees, token_ids):
    return token_ids, [(tree.tokens, tree.parents) for tree in trees]


@pytest.mark.parametrize(("label", "options"), METHODS)
def test_each_request_gets_the_drafts_that_it_gets_alone(target, folder, label, options):
    drafter, rule = method(folder, label, options), ["rejection", "rejection", "coupled", "rejection"]
    engine, together, alone = engine_of(target, "full"), [], []
    for prompt, sampling, accepted in zip(PROMPTS, SAMPLING, rule, strict=True):
        given = {"eos_ids": [], "rule": accepted}
        trees: list[TokenTree] = []
        result = decode(target, drafter, lengths.create("full"), prompt, sampling, trace_trees=trees, **given)
        alone.append(outcome(trees, result.token_ids))
        trees = []
        request = Request(target, drafter.fork(), prompt, sampling, trace_trees=trees, **given)
        engine.add(request)
        together.append((request, trees))
    while engine.busy:
        engine.step()
    assert [outcome(trees, request.result().token_ids) for request, trees in together] == alone


def test_drafts_of_all_requests_take_as_many_steps_of_the_head_as_those_of_one(torch_target, folder, monkeypatch):
    rows: list[int] = []
    step = EagleHead.step

    def counted(head, parts):
        rows.append(len(parts))
        return step(head, parts)

    monkeypatch.setattr(EagleHead, "step", counted)
    drafter = drafters.create("eagle", {"head": folder / "eagle", "tree": "chain", "depth": 3})
    engine = engine_of(torch_target, "full")
    for prompt in PROMPTS:
        sampling = Sampling(max_tokens=6)
        engine.add(Request(torch_target, drafter.fork(), prompt, sampling, eos_ids=[]))
    engine.step()
    while engine.busy:
        before = len(rows)
        engine.step()
        assert len(rows) - before <= 4
    assert max(rows) == len(PROMPTS)


def test_what_a_request_holds_is_freed_when_it_ends(target, folder):
    drafter = drafters.create("eagle", {"head": folder / "eagle"})
    decode(target, drafter, lengths.create("full"), PROMPT, Sampling(max_tokens=5), eos_ids=[])
    assert drafter._sequence is None
    drafter.end()
    assert not drafter._pending


@pytest.mark.parametrize("label", ["eagle", "eagle3"])
def test_what_was_drafted_is_dropped_where_nothing_is_new(target, folder, label):
    drafter = drafters.create("eagle", {"head": folder / label, "tree": "chain"})
    features = drafter.prepare(target)
    prefill = OneSequence(target).prefill(PROMPT, features)
    context = Context([*PROMPT, 7], len(PROMPT), 100, Sampling(), torch.Generator())
    drafter.begin(target, context, prefill)
    first, second = (drafter.propose(context, 5) for _ in range(2))
    assert first.tokens == second.tokens
    assert len(first) == 6
