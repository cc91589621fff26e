"""EAGLE: trees and counts are those of the official implementation's traces."""

from __future__ import annotations

import itertools
import json

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.targets.registry import target_of
from tests.drafters.eagle_heads import ENGINES, run, save_heads, wide
from tests.drafters.eagle_oracle import CONFIG, random_tensors, save
from tests.support.few import few


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_heads(tmp_path_factory.mktemp("heads"))


def test_the_context_window_ends_drafts(folder):
    target = target_of(wide(max_position_embeddings=20))
    drafter = drafters.create("eagle", {"head": folder / "eagle"})
    expected = run(target, drafters.create("autoregressive"), length="fixed:0")[1]
    assert run(target, drafter)[1].token_ids == expected.token_ids
    assert len(expected.token_ids) == 12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("scale", [1e2, 1e30])
def test_a_head_whose_numbers_overflow_changes_no_output(tmp_path, engine, temperature, scale):
    save(tmp_path, {name: scale * weights for name, weights in random_tensors(CONFIG, False).items()}, CONFIG)
    target = target_of(wide(), engine=engine)
    drafter = drafters.create("eagle", {"head": tmp_path})
    expected = run(target, drafters.create("autoregressive"), rule="coupled", temperature=temperature)[1]
    assert run(target, drafter, rule="coupled", temperature=temperature)[1].token_ids == expected.token_ids


TRACES = {
    "eagle1_strong": ("eagle1", {"tree": "static"}),
    "eagle2_strong_60_7_10": ("eagle1", {"total_tokens": 60, "depth": 7, "eagle_topk": 10}),
    "eagle3_dv320_60_7_10": ("eagle3", {}),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("trace", "requests"), few(itertools.product(TRACES, [1, None]), lambda case: case[1] is not None)
)
def test_trees_and_counts_are_those_of_the_official_implementation(shared, reference_model, trace, requests, engine):
    head, options = TRACES[trace]
    drafter = drafters.create("eagle", {"head": shared / "reference" / head, **options})
    target = target_of(reference_model, engine=engine)
    for request in json.loads((shared / "reference" / "traces" / f"{trace}.json").read_text())[:requests]:
        prompt = request["prompt"]
        # The official output may end before the last step's tokens do.
        expected = request["output"][len(prompt) :]
        steps, result = run(target, drafter, prompt, eos=[2], max_tokens=len(expected) + 1)
        assert result.token_ids[: len(expected)] == expected
        assert [step.emitted for step in result.trace.steps] == [step["emitted"] for step in request["steps"]]
        for (_, tree), step in zip(steps, request["steps"], strict=True):
            assert tree.tokens == step["tree"]
            assert tree.depths == step.get("depth", tree.depths)
