"""``min_tokens`` and ``ignore_eos`` of all back ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from ianvs_specdec.backends import backend
from ianvs_specdec.backends.official.backend import LadeLLM
from ianvs_specdec.backends.split.backend import SplitSpecDecLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Message, Sampling
from tests.serving.test_completions import build_ending

HELLO: list[Message] = [{"role": "user", "content": "hello"}]
ASKED = [
    Sampling(max_tokens=40),
    Sampling(max_tokens=40, min_tokens=15),
    Sampling(max_tokens=40, min_tokens=40),
    Sampling(max_tokens=40, ignore_eos=True),
    Sampling(max_tokens=40, min_tokens=15, ignore_eos=True),
]


@pytest.mark.slow
def test_transformers_and_engine_have_the_same_minimum_length(tmp_path: Path) -> None:
    folder = str(build_ending(tmp_path / "ending"))
    with backend("autoregressive")(folder) as own, backend("huggingface")(folder) as theirs:
        for sampling in ASKED:
            ours, found = own.generate(HELLO, sampling), theirs.generate(HELLO, sampling)
            assert (found.token_ids, found.finish_reason) == (ours.token_ids, ours.finish_reason)
            assert len(ours.token_ids) >= sampling.min_tokens


@pytest.mark.parametrize("sampling", ASKED[1:])
def test_back_ends_without_min_tokens_reject_it(tiny_model: Path, sampling: Sampling) -> None:
    pytest.importorskip("grpc", reason="needs the extra split")
    split = SplitSpecDecLLM(str(tiny_model), edge={"mode": "stream"})
    for llm in (split, LadeLLM(str(tiny_model))):
        with pytest.raises(UserError, match=r"min_tokens|ignore_eos") as error:
            llm.check(sampling)
        assert error.value.key in ("min_tokens", "ignore_eos")
