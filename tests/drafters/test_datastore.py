"""Datastores, and the trees of REST."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import numpy
import pytest
import torch

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.datastore import Datastore, fingerprint
from ianvs_specdec.engine import Context, TokenTree
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.tiny import VOCABULARY, tiny_model


def context_of(tokens, *, remaining=100, confidence=0.0, noise=None):
    return Context(list(tokens), 1, remaining, Sampling(), torch.Generator(), noise, confidence)


def paths(tree: TokenTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[i] for i in tree.path_to(node)[1:]) for node in range(1, len(tree))]


def rest(tmp_path, sequences, vocabulary=VOCABULARY, **options):
    Datastore.build(sequences, vocabulary).save(tmp_path / "store")
    return drafters.create("rest", {"datastore": tmp_path / "store", **options})


def test_the_longest_match_has_the_most_weight(tmp_path):
    """2-3 follows 5-6-7 once; after 6-7 alone there is 8-9, after 7 alone 9-9, which is too short to count."""
    drafter = rest(tmp_path, [[5, 6, 7, 2, 3], [1, 6, 7, 8, 9], [7, 9, 9]])
    assert paths(drafter.propose(context_of([5, 6, 7]), 16)) == [(2,), (2, 3), (8,), (8, 9)]
    assert paths(drafter.propose(context_of([4, 6, 7]), 16)) == [(2,), (8,), (2, 3), (8, 9)]
    assert paths(drafter.propose(context_of([4, 4, 7]), 16)) == []
    assert paths(drafter.propose(context_of([7]), 16)) == []


def test_drafts_fit_budget_and_remaining_tokens(tmp_path):
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


SEQUENCES = [[1, 2, 3, 4], [5, 1, 2, 3], [9], [1, 2, 7, 8, 1, 2, 3, 6]]


def occurrences(sequences, pattern):
    """By definition: every position after the pattern."""
    n = len(pattern)
    return [s[i + n :] for s in sequences for i in range(len(s) - n + 1) if s[i : i + n] == pattern]


def random_sequences(rng, ids, number=30):
    return [[rng.choice(ids) for _ in range(rng.randrange(0, 12))] for _ in range(number)] + [[ids[0]]]


@pytest.mark.parametrize("vocabulary", [7, 65_535, 65_536])
def test_look_ups_equal_a_linear_search(vocabulary):
    rng = random.Random(vocabulary)
    ids = [0, 1, vocabulary // 2, vocabulary - 2, vocabulary - 1]
    sequences = random_sequences(rng, ids)
    store = Datastore.build(sequences, vocabulary)
    assert len(store) == sum(map(len, sequences))
    for _ in range(200):
        tokens = [rng.choice(ids) for _ in range(rng.randrange(1, 8))]
        lengths = [n for n in range(2, len(tokens) + 1) if occurrences(sequences, tokens[-n:])]
        longest = store.longest_suffix(tokens, 2)
        assert longest == max(lengths, default=0)
        if longest:
            rows, weights = store.continuations(tokens, longest, longest, 3)
            separator = vocabulary
            found = [tuple(row.tolist()[: [*row.tolist(), separator].index(separator)]) for row in rows]
            assert sorted(found) == sorted(tuple(rest[:3]) for rest in occurrences(sequences, tokens[-longest:]))
            assert rows.tolist() == sorted(rows.tolist())
            assert set(weights) == {2.0**longest}


def test_files_round_trip_and_are_reproducible(tmp_path):
    store = Datastore.build(SEQUENCES, 10, "print")
    store.save(tmp_path / "a")
    loaded = Datastore.load(tmp_path / "a")
    assert (len(loaded), loaded.vocabulary, loaded.tokenizer) == (17, 10, "print")
    for tokens in ([1, 2, 3], [8, 1, 2], [4]):
        n = store.longest_suffix(tokens, 1)
        assert loaded.longest_suffix(tokens, 1) == n
        for ours, theirs in zip(
            store.continuations(tokens, n, 1, 4), loaded.continuations(tokens, n, 1, 4), strict=True
        ):
            numpy.testing.assert_array_equal(ours, theirs)
    code = (
        "import sys; from pathlib import Path; from ianvs_specdec.drafters.datastore import Datastore;"
        f"Datastore.build({SEQUENCES}, 10, 'print').save(Path(sys.argv[1]))"
    )
    for name in ("b", "c"):
        subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], check=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()


def test_damaged_files_are_one_message(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "store"
    Datastore.build(SEQUENCES, 10).save(path)
    whole = path.read_bytes()
    for damaged in (b"", b"x" * 40, whole[:30], whole[:-1], whole[:-4] + b"\xff" * 4, whole + b"\0"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"cannot read the datastore .*specdec datastore build") as caught:
            Datastore.load(path)
        assert caught.value.key == "datastore"
        assert "\n" not in str(caught.value)
    save_file({"weight": numpy.zeros(3)}, path)
    with pytest.raises(UserError, match="is not a datastore of this version"):
        Datastore.load(path)
    with pytest.raises(UserError, match="cannot read the datastore"):
        Datastore.load(tmp_path)


def test_a_datastore_for_another_model_is_refused(tmp_path):
    target = HuggingFaceTarget(tiny_model())
    Datastore.build(SEQUENCES, VOCABULARY).check_fits(tmp_path, target)
    with pytest.raises(UserError, match="vocabulary of 10 tokens, the model one of 64") as caught:
        Datastore.build(SEQUENCES, 10).check_fits(tmp_path, target)
    assert caught.value.key == "datastore"

    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}, "added_tokens": []}')
    target.model.name_or_path = str(tmp_path)
    Datastore.build(SEQUENCES, VOCABULARY, fingerprint(tmp_path)).check_fits(tmp_path, target)
    Datastore.build(SEQUENCES, VOCABULARY).check_fits(tmp_path, target)
    with pytest.raises(UserError, match="made with another tokenizer"):
        Datastore.build(SEQUENCES, VOCABULARY, "another").check_fits(tmp_path, target)


@pytest.mark.parametrize("rows", [12, VOCABULARY, 128])
def test_one_tokenizer_padded_to_another_size_fits(tmp_path, rows):
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0}}, "added_tokens": []}')
    target = HuggingFaceTarget(tiny_model(vocab_size=rows))
    target.model.name_or_path = str(tmp_path)
    sequences = [[3, 4, 5, 6, 7] * 4]
    store = Datastore.build(sequences, VOCABULARY, fingerprint(tmp_path))
    store.check_fits(tmp_path, target)
    # A token of the padding, which no text has, is found nowhere.
    assert store.longest_suffix([4, 5, 6], 1) == 3
    assert store.longest_suffix([4, 5, 100_000], 1) == 0
    beyond = Datastore.build([*sequences, [40]], VOCABULARY, fingerprint(tmp_path))
    if rows < VOCABULARY:
        with pytest.raises(UserError, match="made with another tokenizer"):
            beyond.check_fits(tmp_path, target)
