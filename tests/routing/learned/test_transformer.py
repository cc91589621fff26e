"""The classifier ``encoder`` with tiny random models of several families."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.transformer import TransformerClassifier
from ianvs_specdec.routing.learned.transformer_model import QueryTokens

WORDS = [f"{first}{second}" for first in "abcde" for second in "lmnoprst"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
FAMILIES = {
    "bert": (transformers.BertConfig, {"max_position_embeddings": 64}),
    "roberta": (transformers.RobertaConfig, {"max_position_embeddings": 34, "pad_token_id": 0}),
    "llama": (transformers.LlamaConfig, {"num_key_value_heads": 1, "max_position_embeddings": 64}),
}
FAST = {"epochs": 1, "learning_rate": 1e-3, "max_length": 24}


def tokenizer(family):
    """One token per word. A causal LM has a chat template and, like many, no token to pad with."""
    found = Tokenizer(models.WordLevel({word: i for i, word in enumerate([*SPECIAL, *WORDS])}, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.Whitespace()
    if family == "llama":
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=found, eos_token="[SEP]", unk_token="[UNK]")
        fast.chat_template = "{% for m in messages %}[SEP]{{ m['content'] }}{% endfor %}[SEP]"
        return fast
    found.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=found, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Family -> folder of a random model."""
    made = {}

    def make(family):
        if family not in made:
            made[family] = tmp_path_factory.mktemp(family)
            kind, extra = FAMILIES[family]
            config = kind(vocab_size=len(SPECIAL) + len(WORDS), **SIZE, **extra)
            auto = transformers.AutoModelForCausalLM if family == "llama" else transformers.AutoModel
            with torch.random.fork_rng():
                torch.manual_seed(0)
                auto.from_config(config).save_pretrained(made[family])
            tokenizer(family).save_pretrained(made[family])
        return str(made[family])

    return make


def task(count, seed=0):
    """Queries of 3 to 9 words. The label is 1 if they include one of the first four words."""
    generator = np.random.default_rng(seed)
    texts, labels = [], []
    for index in range(count):
        words = [str(word) for word in generator.choice(WORDS[4:], generator.integers(2, 9))]
        if index % 2:
            words.insert(int(generator.integers(0, len(words))), WORDS[generator.integers(0, 4)])
        texts.append(" ".join([*words, WORDS[39]]))
        labels.append(float(index % 2))
    return [Query((text,)) for text in texts], np.array(labels)


def fit(folder, family, queries, labels, **options):
    source = {"model": folder(family)} if family in FAMILIES else {}
    if family == "untrained":
        source = {"tokenizer": folder("bert")}
    return TransformerClassifier.fit(queries, labels, **{**FAST, **source, **options})


@pytest.mark.parametrize(
    "family",
    [
        *("bert", "llama", "words"),
        *(pytest.param(family, marks=pytest.mark.slow) for family in ("roberta", "untrained")),
    ],
)
def test_families_learn_and_score_alike_in_batches_and_from_disk(folder, tmp_path, family):
    queries, labels = task(160)
    options = {"width": 32, "learning_rate": 3e-3} if family not in FAMILIES else {"learning_rate": 3e-3}
    trained = fit(folder, family, queries, labels, epochs=9, **options)
    others, truth = task(80, seed=1)
    scores = trained.score(others)
    assert np.mean((scores > 0.5) == truth) > 0.9
    alone = np.concatenate([trained.score([query]) for query in others])
    np.testing.assert_allclose(alone, scores, atol=1e-5)
    trained.save(tmp_path)
    np.testing.assert_array_equal(TransformerClassifier.load(tmp_path).score(others), scores)


def test_the_folder_has_no_local_paths_and_no_code(folder, tmp_path):
    queries, labels = task(40)
    fit(folder, "llama", queries, labels).save(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".safetensors", ".jinja"}
    for path in files:
        assert path.stat().st_mode & 0o044 == 0o044
        assert str(tmp_path.parent.parent).encode() not in path.read_bytes()


def test_training_is_reproducible_and_keeps_the_global_generator(folder):
    queries, labels = task(48)
    before = torch.get_rng_state()
    first, again = (fit(folder, "untrained", queries, labels, width=32, seed=1) for _ in "12")
    assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(again.score(queries), first.score(queries))


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_long_queries_are_truncated_in_the_middle(folder, family):
    tokens = QueryTokens(transformers.AutoTokenizer.from_pretrained(folder(family)), 16)
    before, after = ([2], [3]) if family == "bert" else ([3], [3])
    room = 16 - len(before) - len(after)
    text = " ".join(WORDS[index % 40] for index in range(400))
    ids = [len(SPECIAL) + index % 40 for index in range(400)]
    expected = [*before, *ids[: room - room // 2], *ids[-(room // 2) :], *after]
    assert tokens(text) == expected
    assert tokens("am an") == [*before, 5, 6, *after]


def test_any_text_gets_a_score(folder):
    queries, labels = task(40)
    trained = fit(folder, "roberta", queries, labels, max_length=512)
    odd = [Query((text,)) for text in ("am " * 50_000, "", "\ud800", "[PAD] [PAD]", "\x00 \x02", "an", "ao" * 50_000)]
    assert np.isfinite(trained.score(odd)).all()
    assert np.isfinite([trained.score([query])[0] for query in odd]).all()


def test_code_of_a_model_is_not_run(tmp_path):
    queries, labels = task(40)
    trap = tmp_path / "trap"
    trap.mkdir()
    touched = tmp_path / "touched"
    (trap / "modeling_own.py").write_text(f"open({str(touched)!r}, 'w').close()\nclass Own: pass\n")
    own = {"auto_map": dict.fromkeys(("AutoConfig", "AutoModelForSequenceClassification"), "modeling_own.Own")}
    (trap / "config.json").write_text(json.dumps({"model_type": "own", **own}))
    with pytest.raises(UserError, match="cannot load the model"):
        TransformerClassifier.fit(queries, labels, model=str(trap))
    assert not touched.exists()


@pytest.mark.parametrize(
    ("options", "key", "message"),
    [
        ({"model": "BERT", "tokenizer": "BERT"}, "tokenizer", "a model has its own"),
        ({"model": "nowhere"}, "model", "no model folder nowhere"),
        ({"tokenizer": "nowhere"}, "tokenizer", "no folder nowhere"),
        ({"model": "BERT", "width": 64}, "width", "a model has its own"),
        ({"tokenizer": "BERT", "width": 33}, "width", "a multiple of 32"),
        ({"model": "BERT", "epochs": 0}, "epochs", "a whole number from 1"),
        ({"model": "BERT", "learning_rate": "fast"}, "learning_rate", "a number above 0"),
        ({"model": "BERT", "patience": 3}, "patience", "unknown option of encoder"),
        ({"model": "BERT", "device": "abacus"}, "device", "abacus"),
        ({"model": "BERT", "max_length": 3}, "max_length", "at least 4"),
    ],
)
def test_invalid_options_are_refused(folder, options, key, message):
    queries, labels = task(20)
    options = {name: folder("bert") if value == "BERT" else value for name, value in options.items()}
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        TransformerClassifier.fit(queries, labels, **options)
    assert caught.value.key == key
