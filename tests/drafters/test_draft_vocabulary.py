"""Which draft models go with which targets."""

from __future__ import annotations

import pytest
import torch

from ianvs_specdec import lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.draft_model.drafter import DraftModel
from ianvs_specdec.engine import decode
from ianvs_specdec.targets.registry import target_of
from tests.support.tiny import VOCABULARY, tiny_model

GREEDY, DRAWN = Sampling(max_tokens=30), Sampling(max_tokens=30, temperature=1.0)


def tokenizer_of(words, folder):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(words)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, "w0"))).save_pretrained(folder)


def pair(tmp_path, target_words, draft_words, target_size=VOCABULARY, draft_size=VOCABULARY):
    from transformers import AutoModelForCausalLM

    ours, theirs = tmp_path / "target", tmp_path / "draft"
    for folder, words, size, seed in ((ours, target_words, target_size, 0), (theirs, draft_words, draft_size, 1)):
        tiny_model(vocab_size=size, seed=seed).save_pretrained(folder)
        if words:
            tokenizer_of(words, folder)
    return target_of(AutoModelForCausalLM.from_pretrained(ours)), DraftModel(theirs)


WORDS = [f"w{i}" for i in range(60)]


@pytest.mark.parametrize(("target_size", "draft_size"), [(64, 72), (72, 64)])
@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_vocabularies_padded_to_different_sizes_go_together(tmp_path, target_size, draft_size, sampling):
    target, drafter = pair(tmp_path, WORDS, WORDS, target_size, draft_size)
    with torch.no_grad():  # the padding of the target is said often, that of the draft would be drafted
        target.model.lm_head.weight[60:] *= 2
    trees = []
    result = decode(target, drafter, lengths.create("fixed:5"), [5, 9, 14, 3], sampling, eos_ids=[], trace_trees=trees)
    assert len(result.token_ids) == 30
    assert any(len(tree) > 1 for tree in trees)
    assert all(token < target_size for tree in trees for token in tree.tokens)
    for tree in trees:
        assert all(len(q) == target_size for q in (tree.probabilities or {}).values())


def test_some_renamed_tokens_are_tolerated_and_more_are_another_tokenizer(tmp_path):
    words = [f"w{i}" for i in range(200)]
    target, drafter = pair(tmp_path, words, [*words[:197], "new", "other", "w199"], 200, 200)
    drafter.prepare(target)  # 2 of 200 are one in a hundred
    assert drafter.translation is None
    target, drafter = pair(tmp_path / "more", words, [*words[:190], *words[:189:-1]], 200, 200)
    drafter.prepare(target)
    assert drafter.translation is not None


def test_without_tokenizers_the_sizes_must_be_equal(tmp_path):
    target, drafter = pair(tmp_path, WORDS, None, 64, 72)
    with pytest.raises(UserError, match="vocabulary of 72 tokens, the target one of 64") as caught:
        drafter.prepare(target)
    assert caught.value.key == "draft"
    target, drafter = pair(tmp_path / "equal", WORDS, None)
    drafter.prepare(target)
