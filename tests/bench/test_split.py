"""``bench.split``: drafts of a given quality, and summaries."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("grpc", reason="needs the extra split: pip install 'ianvs-specdec[split]'")

from bench.split import __main__ as split
from bench.split.grid import AUTO, SHARE, STREAMED, summary
from bench.split.paced import Paced
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Context

PROMPT, ANSWER = [5, 6], list(range(100, 2100))


@pytest.fixture
def truth(tmp_path):
    file = tmp_path / "truth.jsonl"
    file.write_text(json.dumps({"prompt": PROMPT, "output": PROMPT + ANSWER}) + "\n")
    return str(file)


def begun(drafter, output):
    context = Context(PROMPT + output, len(PROMPT), 5000, Sampling(max_tokens=5000), torch.Generator())
    drafter.begin(SimpleNamespace(vocabulary=4096), context, None)
    return context


def drafted(drafter, output):
    return drafter.propose(begun(drafter, output), 5000).tokens[1:]


@pytest.mark.parametrize("acceptance", [0.0, 0.8])
def test_the_share_of_right_drafts(truth, acceptance):
    tokens = drafted(Paced(truth, acceptance, most=5000), [])
    right = sum(token == known for token, known in zip(tokens, ANSWER, strict=True))
    assert right / len(ANSWER) == pytest.approx(acceptance, abs=0.04)


def test_summary_of_the_controller():
    rates = {AUTO: 95.0, STREAMED: 90.0, "split 4": 100.0, SHARE: 0.2}
    text = summary([{"rates": rates}])
    assert "least 0.950" in text
    assert text.endswith("auto / streamed: least 1.056")


def test_each_part_has_help(capsys):
    for part in split.PARTS:
        with pytest.raises(SystemExit) as ended:
            split.main([part, "--help"])
        assert ended.value.code == 0
        assert "--out" in capsys.readouterr().out
