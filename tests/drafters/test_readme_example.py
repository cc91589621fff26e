"""The drafter that the documentation shows works as it says, taken from there word for word."""

from __future__ import annotations

import sys
import types

import pytest

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters import options, registry
from ianvs_specdec.engine import decode
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.drafters import shown_code
from tests.support.tiny import tiny_model


@pytest.fixture
def bigrams(monkeypatch):
    """The page's file and line, put in place."""
    code, declared, line = shown_code()[:3]
    assert len(code.splitlines()) <= 30
    module = types.ModuleType("ianvs_specdec.drafters.bigrams")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, "bigrams.py", "exec"), module.__dict__)
    exec(declared, known := dict(vars(options)))
    entry = eval("{" + line + "}", {"Method": registry.Method, "options": types.SimpleNamespace(**known)})
    monkeypatch.setitem(registry.METHODS, *entry.popitem())


@pytest.mark.parametrize("sampling", [Sampling(max_tokens=40), Sampling(max_tokens=40, temperature=0.8, seed=3)])
def test_it_is_lossless_and_takes_part_in_everything(bigrams, sampling):
    target = HuggingFaceTarget(tiny_model())
    prompt = [5, 6, 7, 5, 6, 7, 5]

    def output(method, length, **settings):
        drafter = drafters.create(method, settings)
        return decode(target, drafter, lengths.create(length), prompt, sampling, eos_ids=[], rule="coupled")

    plain = output("autoregressive", "fixed:0")
    drafted = output("bigrams", drafters.default_length("bigrams"), longest=4)
    assert drafted.token_ids == plain.token_ids
    assert max(step.drafted for step in drafted.trace.steps) == 4
    assert output("bigrams", "goodput").token_ids == plain.token_ids
