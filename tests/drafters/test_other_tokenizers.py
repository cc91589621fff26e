"""A draft model with another tokenizer: its drafts, their cost, and that the output stays the target's own."""

from __future__ import annotations

import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.draft_model.drafter import DraftModel
from ianvs_specdec.drafters.draft_model.translation import Translation
from ianvs_specdec.engine import decode
from ianvs_specdec.targets.registry import create_target
from tests.support.paths import EXAMPLE
from tests.support.requests import alone, decoded, engine_of, request_of, results, target_of_kind
from tests.support.tiny import VOCABULARY, tiny_model

LETTERS = "abcdefghijklmnopqrstuvwxyz ,."
TEXT = "the quick brown fox jumps over the lazy dog, and the other dogs then jump over the brown fox there. "
GREEDY = Sampling(max_tokens=40)
RNG = random.Random(0)
PROMPTS = [[RNG.randrange(2, len(LETTERS) + 2) for _ in range(tokens)] for tokens in (8, 2, 33, 9, 21, 5, 13, 40)]
CLOUD = EXAMPLE / "models" / "cloud"


def tokenizer_of(pieces, merges=()):
    """Of the ``pieces``, in this order behind <s> and </s>."""
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {piece: number for number, piece in enumerate(["<s>", "</s>", *pieces])}
    raw = Tokenizer(models.BPE(vocabulary, list(merges)))
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")


def merged(count=30):
    """A tokenizer that merges what is frequent in ``TEXT``."""
    from tokenizers import Tokenizer, decoders, models, trainers

    raw = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=len(LETTERS) + 2 + count, special_tokens=["<s>", "</s>"], initial_alphabet=list(LETTERS)
    )
    raw.train_from_iterator([TEXT] * 20, trainer)
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")


def saved(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a target that spells, the same model with its ids the other way round, and a draft that merges."""
    base, spelling = tmp_path_factory.mktemp("models"), tokenizer_of(LETTERS)
    model = tiny_model(vocab_size=len(LETTERS) + 2)
    twin = tiny_model(vocab_size=len(LETTERS) + 2)
    order = torch.tensor([0, 1, *range(len(LETTERS) + 1, 1, -1)])
    for weight in (twin.get_input_embeddings().weight, twin.get_output_embeddings().weight):
        weight.data = weight.data[order].clone()
    merging = merged()
    return {
        "target": saved(base / "target", model, spelling),
        "twin": saved(base / "twin", twin, tokenizer_of(LETTERS[::-1])),
        "merging": saved(base / "merging", tiny_model(vocab_size=len(merging), seed=1), merging),
    }


def target_in(folder, dtype=torch.float32, **settings):
    return create_target(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), **settings)


def plain_draft(ours, theirs, draft, tokens, count):
    """What is drafted behind ``tokens``, by way of all of the text each time."""
    special, known = set(ours.added_tokens_decoder), theirs.get_vocab()
    common = [i for i in tokens if i not in special or ours.convert_ids_to_tokens(i) in known]
    read = theirs(ours.decode(common))["input_ids"]
    if len(read) < 2:
        return []
    ids = list(read)
    with torch.inference_mode():
        for _ in range(count):
            token = int(draft(torch.tensor([ids])).logits[0, -1].argmax())
            if token in theirs.added_tokens_decoder:
                break
            ids.append(token)
    more = theirs.decode(ids, skip_special_tokens=True)[len(theirs.decode(read, skip_special_tokens=True)) :]
    written = ours(ours.decode(tokens) + more.partition("\ufffd")[0], add_special_tokens=False)["input_ids"]
    return written[len(tokens) :][:count] if written[: len(tokens)] == list(tokens) else None


def drafts_of(target, drafter, prompt, **settings):
    """The contexts of all steps, each with what was drafted behind it and how many tokens might have been."""
    trees = []
    result = decoded(target, drafter, "fixed:5", prompt, GREEDY, trace_trees=trees, **settings)
    output, place = [*prompt, *result.token_ids], len(prompt)
    found = []
    for (_, count), tree in zip(result.trace.chunks, trees, strict=False):
        place += count
        found.append((output[:place], tree.tokens[1:], min(5, len(output) - place - 1)))
    return found


def test_drafts_are_those_of_reading_and_writing_all_of_the_text(models):
    target, drafter = target_in(models["target"]), DraftModel(models["merging"])
    ours, theirs = (AutoTokenizer.from_pretrained(models[name]) for name in ("target", "merging"))
    draft = AutoModelForCausalLM.from_pretrained(models["merging"])
    for prompt in PROMPTS:
        found = drafts_of(target, drafter, prompt)
        assert any(tokens for _, tokens, _ in found)
        for context, tokens, count in found:
            assert tokens == plain_draft(ours, theirs, draft, context, count)


@pytest.mark.parametrize("draft", ["twin", "merging"])
@pytest.mark.parametrize("kind", ["native", "fused"])
def test_output_is_the_targets_own(models, kind, draft):
    """Eight at once, greedy and coupled."""
    target = target_of_kind(kind, AutoModelForCausalLM.from_pretrained(models["target"]))
    drafter = DraftModel(models[draft])
    drafter.prepare(target)
    for sampling in (Sampling(max_tokens=30), Sampling(max_tokens=30, temperature=0.8, top_p=0.9)):
        requests = [request_of(target, prompt, sampling, drafter.fork()) for prompt in PROMPTS]
        found = results(engine_of(target, max_batch_size=8), *requests)
        assert [result.token_ids for result in found] == [alone(target, prompt, sampling) for prompt in PROMPTS]
        assert sum(step.accepted for result in found for step in result.trace.steps)


@torch.inference_mode()
def test_sampled_output_has_the_targets_distribution(models):
    """Drafts without probabilities: the first two of three tokens, of 2,000 outputs."""
    target, drafter = target_in(models["target"]), DraftModel(models["twin"])
    drafter.prepare(target)
    prompt, size = PROMPTS[0], len(LETTERS) + 2

    def after(prompts):
        return (target.model(torch.tensor(prompts)).logits[:, -1] / 0.5).softmax(-1)

    exact = after([prompt]).T * after([[*prompt, token] for token in range(size)])
    samplings = [Sampling(max_tokens=3, temperature=0.5, seed=seed) for seed in range(2000)]
    requests = [request_of(target, prompt, each, drafter.fork(), rule="rejection") for each in samplings]
    counts = torch.zeros(size, size)
    for result in results(engine_of(target, "fixed:2", max_batch_size=64), *requests):
        counts[result.token_ids[0], result.token_ids[1]] += 1
    assert (counts / 2000 - exact).abs().sum() / 2 < 0.06


def test_characters_in_pieces_and_merges_across_the_end():
    ours, theirs = AutoTokenizer.from_pretrained(CLOUD), tokenizer_of(LETTERS)
    translation = Translation(ours, theirs)
    for before, after in (("the quick bro", "wn fox"), ("over the", " lazy"), ("dog", ", and")):
        tokens, read = ours(before, add_special_tokens=False)["input_ids"], theirs(before)["input_ids"]
        assert translation.read(tokens) == read
        written = translation.write(tokens, read, theirs(after)["input_ids"])
        assert ours.decode([*tokens, *written]) == before + after
    marks = Translation(theirs, tokenizer_of(["<mark>", *LETTERS]))
    assert marks.read([0, *theirs("dog")["input_ids"], 1]) == [0, *marks._draft("dog")["input_ids"], 1]
    part = ours("é", add_special_tokens=False)["input_ids"][:1]
    assert ours.decode(part) == "\ufffd"
    assert translation.read(part) == []


def test_branches_are_refused_and_the_check_says_that_drafts_are_translated(models, caplog):
    target = target_in(models["target"])
    settings = {"draft": str(models["merging"])}
    drafters.check_files("draft_model", settings, None, models["target"])
    assert "has another tokenizer than" in caplog.text
    assert "its drafts are translated as text" in caplog.text
    with pytest.raises(UserError, match="drafts chains; leave branches out") as caught:
        drafters.check_files("draft_model", {**settings, "branches": 3}, None, models["target"])
    assert caught.value.key == "branches"
    with pytest.raises(UserError, match="drafts chains; leave branches out"):
        DraftModel(models["merging"], branches=3).prepare(target)


def test_a_damaged_tokenizer_is_none(models, tmp_path):
    """As for a model without one, the sizes of the vocabularies must be equal."""
    folder = tmp_path / "draft"
    saved(folder, AutoModelForCausalLM.from_pretrained(models["merging"]), merged())
    (folder / "tokenizer.json").write_text(json.dumps({"model": 3}))
    drafters.check_files("draft_model", {"draft": str(folder)}, None, models["target"])
    with pytest.raises(UserError, match="or one that comes with its own"):
        DraftModel(folder).prepare(target_in(models["target"]))


THIRTY, DRAWN = Sampling(max_tokens=30), Sampling(max_tokens=30, temperature=1.0)


def words_tokenizer(words, folder):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(words)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(vocabulary, "w0"))).save_pretrained(folder)


def pair_of(tmp_path, target_words, draft_words, target_size=VOCABULARY, draft_size=VOCABULARY):
    from transformers import AutoModelForCausalLM

    ours, theirs = tmp_path / "target", tmp_path / "draft"
    for folder, words, size, seed in ((ours, target_words, target_size, 0), (theirs, draft_words, draft_size, 1)):
        tiny_model(vocab_size=size, seed=seed).save_pretrained(folder)
        if words:
            words_tokenizer(words, folder)
    return create_target(AutoModelForCausalLM.from_pretrained(ours)), DraftModel(theirs)


WORDS = [f"w{i}" for i in range(60)]


@pytest.mark.parametrize(("target_size", "draft_size"), [(64, 72), (72, 64)])
@pytest.mark.parametrize("sampling", [THIRTY, DRAWN], ids=["greedy", "drawn"])
def test_vocabularies_padded_to_different_sizes_go_together(tmp_path, target_size, draft_size, sampling):
    target, drafter = pair_of(tmp_path, WORDS, WORDS, target_size, draft_size)
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
    target, drafter = pair_of(tmp_path, words, [*words[:197], "new", "other", "w199"], 200, 200)
    drafter.prepare(target)  # 2 of 200 are one in a hundred
    assert drafter.translation is None
    target, drafter = pair_of(tmp_path / "more", words, [*words[:190], *words[:189:-1]], 200, 200)
    drafter.prepare(target)
    assert drafter.translation is not None


def test_without_tokenizers_the_sizes_must_be_equal(tmp_path):
    target, drafter = pair_of(tmp_path, WORDS, None, 64, 72)
    with pytest.raises(UserError, match="vocabulary of 72 tokens, the target one of 64") as caught:
        drafter.prepare(target)
    assert caught.value.key == "draft"
    target, drafter = pair_of(tmp_path / "equal", WORDS, None)
    drafter.prepare(target)
