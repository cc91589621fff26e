"""REST: the tree of what most often followed, and the target's own output."""

from __future__ import annotations

import json

import numpy
import pytest
import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.datastore import Datastore
from ianvs_specdec.drafters.rest import frequent_prefixes
from ianvs_specdec.engine import Context, TokenTree, decode
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.tiny import VOCABULARY, tiny_model

END = 10


def context_of(tokens, *, remaining=100, confidence=0.0, noise=None):
    return Context(list(tokens), 1, remaining, Sampling(), torch.Generator(), noise, confidence)


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[i] for i in tree.path_to(node)[1:]) for node in range(1, len(tree))]


def tree_of(rows, nodes=100, least=0.0001, weights=None, **context):
    rows = numpy.array(sorted(rows), numpy.int64)
    weights = numpy.ones(len(rows)) if weights is None else numpy.array(weights, float)
    tree = frequent_prefixes(rows, weights, END, context_of([4], **context), nodes, least)
    assert tree.tokens[0] == 4
    return tree


FOLLOWED = [(1, 2, 3)] * 3 + [(1, 2, END)] * 2 + [(1, 5, 3)] + [(6, 7, 8)] * 2 + [(END, END, END)]


def test_prefixes_come_by_frequency_then_length_then_token():
    """1: 6 of 9; 1-2: 5; 1-2-3: 3; 6, 6-7, 6-7-8: 2 each; 1-5, 1-5-3: 1 each; what ended goes on with nothing."""
    expected = [(1,), (1, 2), (1, 2, 3), (6,), (6, 7), (6, 7, 8), (1, 5), (1, 5, 3)]
    assert paths(tree_of(FOLLOWED)) == expected
    for nodes in range(1, 8):
        assert paths(tree_of(FOLLOWED, nodes=nodes)) == expected[:nodes]
    assert paths(tree_of([(3, 1), (2, 1), (2, 0)])) == [(2,), (3,), (2, 0), (2, 1), (3, 1)]


def test_with_coupled_sampling_what_the_shared_noise_draws_comes_first():
    """At every depth the token with the best log-frequency plus noise has the greatest part of its prefix's weight."""
    for seed in range(40):
        noise = Noise(seed, 16, torch.device("cpu"))
        tree = tree_of(FOLLOWED, noise=noise)
        first = noise.at(1) + torch.tensor([6.0 if t == 1 else 2.0 if t == 6 else 0.0 for t in range(16)]).log()
        assert tree.tokens[1] == int(first.argmax())
        after_1 = tree.tokens.index(1)
        second = noise.at(2) + torch.tensor([5.0 if t == 2 else 1.0 if t == 5 else 0.0 for t in range(16)]).log()
        drawn = [tree.tokens[child] for child in tree.children[after_1]]
        assert drawn == ([2, 5] if int(second.argmax()) == 2 else [5, 2])
        assert sorted(paths(tree)) == sorted(paths(tree_of(FOLLOWED)))


def rest(tmp_path, sequences, vocabulary=VOCABULARY, **options):
    Datastore.build(sequences, vocabulary).save(tmp_path / "store")
    return drafters.create("rest", {"datastore": tmp_path / "store", **options})


def test_the_longest_end_of_the_context_counts_most(tmp_path):
    """2-3 follows 5-6-7 once; after 6-7 alone there is 8-9, after 7 alone 9-9, which is too short to count."""
    drafter = rest(tmp_path, [[5, 6, 7, 2, 3], [1, 6, 7, 8, 9], [7, 9, 9]])
    assert paths(drafter.propose(context_of([5, 6, 7]), 16)) == [(2,), (2, 3), (8,), (8, 9)]
    assert paths(drafter.propose(context_of([4, 6, 7]), 16)) == [(2,), (8,), (2, 3), (8, 9)]
    assert paths(drafter.propose(context_of([4, 4, 7]), 16)) == []
    assert paths(drafter.propose(context_of([7]), 16)) == []


def test_no_more_than_can_be_used(tmp_path):
    drafter = rest(tmp_path, [list(range(3, 40))])
    assert paths(drafter.propose(context_of([3, 4]), 99))[-1] == tuple(range(5, 15))
    assert paths(drafter.propose(context_of([3, 4]), 2)) == [(5,), (5, 6)]
    assert paths(drafter.propose(context_of([3, 4], remaining=3), 99)) == [(5,), (5, 6)]
    assert paths(drafter.propose(context_of([3, 4], remaining=1), 99)) == []
    mixed = rest(tmp_path, [[3, 4, 5], [3, 4, 5], [3, 4, 6]])
    assert paths(mixed.propose(context_of([3, 4], confidence=0.5), 99)) == [(5,)]


@pytest.fixture(scope="module")
def target():
    return HuggingFaceTarget(tiny_model())


def test_a_datastore_of_another_model_is_refused(tmp_path, target):
    drafter = rest(tmp_path, [[1, 2, 3]], vocabulary=10)
    with pytest.raises(UserError, match="vocabulary of 10 tokens"):
        decode(target, drafter, lengths.create("full"), [5], Sampling(max_tokens=4), eos_ids=[2])
    with pytest.raises(UserError, match="datastore must be an existing file"):
        drafters.create("rest", {"datastore": tmp_path / "nowhere"})
    with pytest.raises(UserError, match="cannot read the datastore"):
        drafters.create("rest", {"datastore": tmp_path})
    with pytest.raises(UserError, match="datastore is missing: a file that specdec datastore wrote"):
        drafters.create("rest")


def test_tau_on_the_reference_target(shared, tmp_path):
    """The prompts of three traces and what the target says to them are the datastore of the fourth."""
    traces = json.loads((shared / "reference" / "traces" / "lade002_L5_W7_G7.json").read_text())
    outputs = [trace["output"] for trace in traces]
    emitted, steps = 0, 0
    for i, trace in enumerate(traces[:3]):
        drafter = rest(tmp_path, [output for j, output in enumerate(outputs) if j != i], vocabulary=640)
        done = len(trace["prompt"]) + 1
        while done < len(outputs[i]):
            context = context_of(outputs[i][:done], remaining=len(outputs[i]) - done)
            right = max(
                [0, *(len(p) for p in paths(drafter.propose(context, 99)) if outputs[i][done:][: len(p)] == list(p))]
            )
            emitted, steps, done = emitted + right + 1, steps + 1, done + right + 1
    assert emitted / steps >= 4.17
