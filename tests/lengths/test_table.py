"""Tables of vLLM and TensorRT-LLM, as users have them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ianvs_specdec import lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.settings import ModelSettings
from tests.support.loads import running

VLLM = "[[1,64,3],[65,128,1],[129,512,0]]"
TENSORRT = "{4: 4, 8: 2, 32: 1}"


def tokens(spec, *counts):
    length = lengths.create(spec)
    return [length.budgets(running(count)) == [budget] * count and budget for count, budget in counts]


@pytest.mark.parametrize("spec", [f"table:{VLLM}", VLLM, yaml.safe_load(VLLM), f"table: {VLLM.replace(',', ', ')}"])
def test_a_table_of_vllm(spec):
    expected = [(1, 3), (64, 3), (65, 1), (128, 1), (129, 0), (600, 0)]
    assert tokens(spec, *expected) == [3, 3, 1, 1, 0, 0]


def test_beyond_a_table_of_vllm_its_last_range_goes_on():
    assert tokens("[[1,2,3],[3,4,1]]", (9, 1)) == [1]


@pytest.mark.parametrize(
    "spec", [f"table:{TENSORRT}", TENSORRT, "{4:4,8:2,32:1}", yaml.safe_load(TENSORRT), '{"4": 4, "8": 2, "32": 1}']
)
def test_a_schedule_of_tensorrt_llm_ends_in_nothing(spec):
    expected = [(1, 4), (4, 4), (5, 2), (8, 2), (9, 1), (32, 1), (33, 0)]
    assert tokens(spec, *expected) == [4, 4, 2, 2, 1, 1, 0]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("[[1,4,3],[6,8,2]]", "[6, 8, 2] leaves a gap behind 4"),
        ("[[2,4,3]]", "[2, 4, 3] leaves a gap behind 0"),
        ("[[1,4,3],[4,8,2]]", "[4, 8, 2] overlaps"),
        ("[[1,4,-1]]", "-1 is not a whole number of at least 0"),
        ("[[0,4,1]]", "0 is not a whole number of at least 1"),
        ("[[1,0,1]]", "0 is not a whole number of at least 1"),
        ("[[1,4]]", "[1, 4] is not [first, last, tokens]"),
        ("[[1,4,2.5]]", "2.5 is not"),
        ("[[1,4,True]]", "True is not"),
        ("[1,4,2]", "1 is not [first, last, tokens]"),
        ("[]", "the table is empty"),
        ("{}", "the table is empty"),
        ("{4: -4}", "-4 is not"),
        ("{0: 4}", "0 is not"),
        ("{4: 4, '4': 2}", "twice"),
        ("{'x': 4}", "'x' is not"),
        ("4", "4 is neither a list nor a mapping"),
        ("", "neither a list nor a mapping"),
        ("[[1,4,3]", "neither a list nor a mapping"),
        ("[" * 9999, "neither a list nor a mapping"),
        ("__import__('os')", "neither a list nor a mapping"),
    ],
)
def test_what_is_no_table_is_told_with_what_to_write(wrong, told):
    with pytest.raises(UserError) as caught:
        lengths.create(f"table:{wrong}")
    assert told in str(caught.value)
    assert "write vLLM's table:[[1,16,5],[17,64,2]]" in str(caught.value)
    assert caught.value.key == "length"


@pytest.mark.parametrize("table", [VLLM, TENSORRT])
@pytest.mark.parametrize(
    "written", ["length: {}", "length: '{}'", "length: 'table:{}'", "length: {{PromptLookup: {}}}"]
)
def test_in_yaml_a_table_is_a_list_a_mapping_or_a_text(tiny_model: Path, table, written):
    given = yaml.safe_load(written.format(table))
    settings = ModelSettings.parse({"model": str(tiny_model), "backend": "PromptLookup", **given})
    length = settings.llm("PromptLookup")._length
    assert length.budgets(running(3)) == [4 if table == TENSORRT else 3] * 3
    assert length.budgets(running(200)) == [0] * 200
