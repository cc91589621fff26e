"""Models that cannot verify trees get chains by default."""

from __future__ import annotations

from pathlib import Path

import pytest

from ianvs_specdec.backends import backend
from ianvs_specdec.common.types import Sampling
from tests.support.damage import copy_of


@pytest.fixture(scope="module")
def hybrid(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    folder = copy_of(tiny_model, tmp_path_factory.mktemp("hybrid") / "model")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1}
    kinds = ["conv", "full_attention"]
    config = Lfm2Config(vocab_size=258, num_hidden_layers=2, layer_types=kinds, bos_token_id=0, eos_token_id=1, **sizes)
    Lfm2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("options", "branches"), [({}, False), ({"successors": 4}, True)])
def test_recycling_drafts_chains_on_a_hybrid_model(hybrid: Path, options: dict[str, int], branches: bool) -> None:
    from ianvs_specdec.drafters.recycling import Recycling

    trees = []
    propose = Recycling.propose
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recycling, "propose", lambda *given: trees.append(propose(*given)) or trees[-1])
        with backend("RecyclingSpecDec")(str(hybrid), **options) as llm:
            drafted = llm.generate([{"role": "user", "content": "ab ab ab"}], Sampling(max_tokens=24))
    with backend("autoregressive")(str(hybrid)) as llm:
        plain = llm.generate([{"role": "user", "content": "ab ab ab"}], Sampling(max_tokens=24))
    assert drafted.token_ids == plain.token_ids
    assert any(len(tree) > 1 for tree in trees)
    assert any(not tree.is_chain for tree in trees) is branches
