"""A draft model with another tokenizer: its drafts, their cost, and that the output stays the target's own."""

from __future__ import annotations

import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from ianvs_specdec import drafters
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.drafters.draft_model.drafter import DraftModel
from ianvs_specdec.drafters.draft_model.translation import Translation
from ianvs_specdec.engine.loop import Engine
from ianvs_specdec.targets.registry import target_of
from tests.support.budgets import Budgets
from tests.support.paths import EXAMPLE, ROOT
from tests.support.requests import alone, decoded, request_of, run
from tests.support.tiny import tiny_model
from tests.support.watched import Watched

LETTERS = "abcdefghijklmnopqrstuvwxyz ,."
TEXT = "the quick brown fox jumps over the lazy dog, and the other dogs then jump over the brown fox there. "
GREEDY = Sampling(max_tokens=40)
RNG = random.Random(0)
PROMPTS = [[RNG.randrange(2, len(LETTERS) + 2) for _ in range(tokens)] for tokens in (8, 2, 33, 9, 21, 5, 13, 40)]
CLOUD = EXAMPLE / "models" / "cloud"
SMOLLM2 = ROOT / "runs" / "smollm2" / "model"
"""Where `specdec export hf` put it."""


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
    return target_of(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), **settings)


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


def test_what_the_target_itself_drafts_in_other_tokens_is_all_accepted(models):
    target, drafter = target_in(models["target"]), DraftModel(models["twin"])
    result = decoded(target, drafter, "fixed:5", PROMPTS[0], GREEDY, eos_ids=[1])
    assert {step.accepted for step in result.trace.steps[:-2]} == {5}


def test_the_draft_model_reads_the_changed_end_of_the_text_only(models):
    target, drafter = target_in(models["target"]), DraftModel(models["merging"])
    drafter.prepare(target)
    watched = drafter._model = Watched(drafter._model)
    steps = drafts_of(target, drafter, PROMPTS[-1])
    computed = [len(piece.tokens) for pieces in watched.steps for piece in pieces]
    assert sum(computed) < len(PROMPTS[-1]) + 9 * len(steps) < 0.3 * len(PROMPTS[-1]) * len(steps)
    assert watched.open_now == []


SAMPLED = Sampling(max_tokens=30, temperature=0.8, top_p=0.9)
ROUNDED = [("float32", None), ("bfloat16", None), ("float32", "int8"), ("float32", "int4")]


@pytest.mark.parametrize(("dtype", "quantization"), ROUNDED, ids=str)
@pytest.mark.parametrize("draft", ["twin", "merging"])
def test_output_is_the_targets_own(models, dtype, quantization, draft):
    """Eight at once, greedy and coupled, with budgets of 0 and more."""
    target = target_in(models["target"], getattr(torch, dtype), quantization=quantization)
    drafter = DraftModel(models[draft])
    drafter.prepare(target)
    for sampling in (Sampling(max_tokens=30), SAMPLED):
        for at_once in (1, 8):
            length = Budgets(lambda stats, step: (5, 0, 3, 0, 0, 0, 1, 8)[(stats.context_tokens + step) % 8])
            engine = Engine(target, length, at_once=at_once)
            requests = [request_of(target, prompt, sampling, drafter.fork()) for prompt in PROMPTS]
            run(engine, *requests)
            results = [request.result() for request in requests]
            assert [result.token_ids for result in results] == [alone(target, each, sampling) for each in PROMPTS]
            assert sum(step.drafted for result in results for step in result.trace.steps)


def test_sampled_output_has_the_targets_distribution(models):
    """Drafts without probabilities: 4,000 outputs of two tokens."""
    target, drafter = target_in(models["target"]), DraftModel(models["twin"])
    counts = {"plain": {}, "drafted": {}}
    for method, count in counts.items():
        chosen = drafter if method == "drafted" else drafters.create("autoregressive")
        for seed in range(2000):
            sampling = Sampling(max_tokens=3, temperature=0.5, seed=seed)
            ids = decoded(target, chosen, "fixed:2", PROMPTS[0], sampling).token_ids
            count[tuple(ids[:2])] = count.get(tuple(ids[:2]), 0) + 1
    keys = set(counts["plain"]) | set(counts["drafted"])
    distance = sum(abs(counts["plain"].get(key, 0) - counts["drafted"].get(key, 0)) for key in keys) / 4000
    assert distance < 0.06


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


@pytest.mark.parametrize("name", ["cloud", "smollm2"])
def test_a_shipped_model_with_a_draft_of_another_tokenizer(name, tmp_path):
    """Real tokenizers on either side: whatever the target says, the drafts are those of the whole text."""
    if not (SMOLLM2 / "tokenizer.json").is_file():
        pytest.skip(f"needs the tokenizer of SmolLM2 in {SMOLLM2}: specdec export hf")
    theirs = AutoTokenizer.from_pretrained(SMOLLM2 if name == "smollm2" else CLOUD)
    draft = tiny_model(vocab_size=len(theirs), bos_token_id=0, eos_token_id=0)
    saved(tmp_path / "draft", draft, theirs)
    folder = CLOUD
    if name == "cloud":
        folder = tmp_path / "target"
        ours = AutoTokenizer.from_pretrained(SMOLLM2)
        saved(folder, tiny_model(vocab_size=len(ours), seed=2, bos_token_id=0, eos_token_id=0), ours)
    ours, target = AutoTokenizer.from_pretrained(folder), target_in(folder)
    prompts = ["user: What is the capital of France?\nassistant:", "Éléphant 🐘 "]
    compared = 0
    for prompt in prompts:
        ids = ours(prompt)["input_ids"]
        for context, tokens, count in drafts_of(target, DraftModel(tmp_path / "draft"), ids):
            expected = plain_draft(ours, theirs, draft, context, count)
            compared += expected is not None and tokens == expected
            assert expected is None or tokens == expected or "\ufffd" in ours.decode(context)
        assert decoded(target, DraftModel(tmp_path / "draft"), "fixed:5", ids, GREEDY).token_ids == alone(
            target, ids, GREEDY
        )
    assert compared


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
