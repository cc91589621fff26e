"""Quality of answers: benchmark scorers, similarity to references, seq2seq likelihood."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.quality import ReferenceQuality, quality


def query(scorer: str = "text", *turns: str) -> Query:
    return Query(turns or ("?",), scorer=scorer)


def of(name: str, answers: list[str], gold: Any, scorer: str = "text") -> float | None:
    (value,) = quality(name)([query(scorer, *["?"] * len(answers))], [answers], [gold])
    return value


def test_each_row_has_its_own_scorer() -> None:
    queries = [query("choice"), query("number"), query("choice"), query("none")]
    answers = [["B."], ["it is 18"], ["C."], ["x"]]
    assert quality()(queries, answers, ["B", "18", "B", "y"]) == [1.0, 1.0, 0.0, None]


def test_programs_are_run_only_with_permission() -> None:
    gold = {"prompt": "def f():\n", "entry_point": "f", "test": "def check(f):\n    assert f() == 1\n"}
    with pytest.raises(UserError, match="row 3: its scorer code must be permitted to run programs"):
        quality().check(query("code"), gold, "row 3")
    permitted = {**gold, "run": 5.0}
    quality().check(query("code"), permitted, "row 3")
    assert of("benchmark", ["    return 1\n"], permitted, "code") == 1.0
    assert of("benchmark", ["    return 2\n"], permitted, "code") == 0.0


def test_similarity_is_the_mean_over_turns_with_a_reference() -> None:
    same = ReferenceQuality(lambda pairs: [float(answer == reference) for answer, reference in pairs])
    queries = [query("text", "1", "2", "3"), query("text", "1"), query("text", "1")]
    answers = [["a", "b", "c"], ["a"], ["a"]]
    assert same(queries, answers, [{"references": ["a", "", "x"]}, "a", ""]) == [0.5, 1.0, None]
    assert same(queries[1:2], [["<think>Is it b?</think>\na"]], ["a"]) == [1.0]


@pytest.mark.parametrize("name", ["chrf", "rouge-l"])
def test_similar_answers_score_higher(name: str) -> None:
    if name == "rouge-l":
        pytest.importorskip("rouge_score", reason="needs the extra rouge")
    values = [
        of(name, [text], "the cat sat on the mat") for text in ("the cat sat on the mat", "the cat sat", "42", "")
    ]
    assert values[0] == pytest.approx(1.0)
    assert values == sorted(values, reverse=True)
    assert values[2] == values[3] == 0.0


def test_similarity_needs_a_reference() -> None:
    for gold in ({"references": []}, {"references": ["", ""]}, "", None, {"references": ["", "", "x"]}):
        with pytest.raises(UserError, match="row 1: it has no reference answer"):
            quality("chrf").check(query("text", "one", "two"), gold, "row 1")
    quality("chrf").check(query("none", "one", "two"), {"references": ["", "x"]}, "row 1")


def tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "<pad>", "</s>", "<unk>", *["the", "cat", "sat", "on", "mat", "dog", "ran"]]
    raw = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    raw.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with random weights."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    folder: Path = tmp_path_factory.mktemp("seq2seq")
    size = {"vocab_size": 11, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = T5Config(**size, pad_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    model = T5ForConditionalGeneration(config)
    # Random weights of the usual size make all words equally likely.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    tokenizer(folder)
    return folder


def likelihood(folder: Path, answer: str, reference: str) -> float:
    """One token of the reference after the other, without batches or padding."""
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    words, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    given, wanted = (words(text, return_tensors="pt").input_ids for text in (answer, reference))
    before, sum_ = [model.config.decoder_start_token_id], 0.0
    for token in wanted[0].tolist():
        with torch.inference_mode():
            logits = model(input_ids=given, decoder_input_ids=torch.tensor([before])).logits[0, -1]
        sum_ += float(logits.double().log_softmax(-1)[token])
        before.append(token)
    return math.exp(sum_ / wanted.shape[1])


def test_a_models_likelihood_is_that_of_the_references_tokens(seq2seq: Path) -> None:
    pairs = [("the cat", "the cat sat on the mat"), ("dog", "the dog"), ("a b c ran on the mat", "ran")] * 4
    expected = [likelihood(seq2seq, *pair) for pair in pairs]
    found = quality(f"seq2seq:{seq2seq}")(
        [query()] * 12, [[answer] for answer, _ in pairs], [gold for _, gold in pairs]
    )
    assert found == pytest.approx(expected, rel=1e-4)
    assert len(set(expected)) == 3
    assert all(0 < value < 1 for value in expected)


def test_a_folder_without_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no model in it"):
        quality(f"seq2seq:{tmp_path}")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="cannot load the sequence-to-sequence model"):
        quality(f"seq2seq:{tmp_path}")([query()], [["a"]], ["b"])
