"""The text classifiers ``logistic`` and ``knn``."""

from __future__ import annotations

import numpy as np
import pytest

from ianvs_specdec.benchmarks import routellm
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.learned.classifier import classifier
from ianvs_specdec.routing.learned.text import ARRAYS
from ianvs_specdec.routing.learned.training import RouterRecipe, train
from ianvs_specdec.routing.outcomes.recorded import Outcomes
from tests.routing.learned.subjects import KINDS, SUBJECTS, apgr, asked, fitted
from tests.support.paths import shared_file


@pytest.fixture(scope="module")
def models():
    return {kind: fitted(kind, asked(800, 0)) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_the_form_of_questions_generalizes_to_new_subjects(kind):
    known, fresh = asked(800, 2, tuple(SUBJECTS)[:4], hard=()), asked(800, 3, tuple(SUBJECTS)[4:], hard=())
    scores = fitted(kind, known).score(fresh.queries)
    calculations = np.array(["Calculate" in query.turns[0] for query in fresh.queries])
    assert scores[calculations].min() > scores[~calculations].max()


@pytest.mark.parametrize("kind", KINDS)
def test_scores_do_not_depend_on_the_batch(models, kind):
    fresh = asked(60, 6)
    alone = [models[kind].score([query])[0] for query in fresh.queries]
    np.testing.assert_allclose(models[kind].score(fresh.queries), alone, atol=1e-4)
    assert models[kind].score([]).shape == (0,)


@pytest.mark.parametrize("kind", KINDS)
def test_odd_queries_have_scores(models, kind):
    texts = ["", " ", "?", "\ud800", "一二三", "A. \nB. ", "a\0b", "x" * 200_000, "word " * 40_000, "\n" * 100_000]
    scores = models[kind].score([Query((text,)) for text in texts])
    assert np.isfinite(scores).all()


def test_long_queries_are_truncated_in_the_middle(models):
    score = models["logistic"].score
    middle, filler = "Calculate 1 + 1 for the court.", "bread " * 8000
    assert score([Query((filler + middle + filler,))]) == score([Query((filler + "x" * len(middle) + filler,))])
    assert score([Query((filler + middle,))]) != score([Query((filler + "x" * len(middle),))])


@pytest.mark.parametrize("kind", KINDS)
def test_inconsistent_arrays_are_refused(kind, tmp_path):
    router = train(asked(120, 9), RouterRecipe(kind=kind, label="gain", folds=2))
    folder = tmp_path / "router"
    router.save(folder)
    arrays = dict(np.load(folder / ARRAYS))
    wrong = {name: arrays[name][1:] for name in ("forms", "indptr", "idf")}
    far = ("indices", "children") if kind == "logistic" else ("indices",)
    for name, value in (wrong | {name: arrays[name].astype(np.int64) + 10**5 for name in far}).items():
        np.savez(folder / ARRAYS, **{**arrays, name: value})
        with pytest.raises(UserError, match="the router in it cannot be read"):
            type(router).load(folder)


@pytest.mark.slow
def test_sentence_transformers_embedding(tmp_path):
    pytest.importorskip("sentence_transformers", reason="the extra sentence-transformers is not installed")
    _encoder(tmp_path / "model")
    outcomes, fresh = asked(200, 11), asked(20, 12).queries
    for kind in KINDS:
        found = fitted(kind, outcomes, embedding=str(tmp_path / "model"))
        (tmp_path / kind).mkdir()
        found.save(tmp_path / kind)
        np.testing.assert_allclose(classifier(kind).load(tmp_path / kind).score(fresh), found.score(fresh), atol=1e-6)
        assert (found.score(fresh) != fitted(kind, outcomes).score(fresh)).any()


def _encoder(folder):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", *sorted({word for words in SUBJECTS.values() for word in words})]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    signs = {"pad_token": "[PAD]", "unk_token": "[UNK]", "model_max_length": 64}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **signs).save_pretrained(folder)
    size = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=len(words), **size)).save_pretrained(folder)


def test_a_missing_embedding_is_refused(tmp_path):
    pytest.importorskip("sentence_transformers", reason="the extra sentence-transformers is not installed")
    with pytest.raises(UserError, match=r"the embedding .*nowhere' cannot be loaded"):
        fitted("knn", asked(30, 13), embedding=str(tmp_path / "nowhere"))


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = shared_file("data", "routellm", "mmlu_responses_csv.tar.gz")
    records = list(routellm.read(path))
    queries = tuple(Query((record.query,), id=record.id, group=record.group) for record in records)
    return Outcomes(
        queries,
        np.array([record.edge_correct for record in records], dtype=float),
        np.array([record.cloud_correct for record in records], dtype=float),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("by", "seed", "least"), [("row", 101, 0.68), ("group", 101, 0.58)])
def test_recorded_outcomes_of_two_large_models(recorded, by, seed, least):
    rest, held = recorded.split(by, 0.25, seed)
    scores = fitted("logistic", rest).score(held.queries)
    assert apgr(scores, held.gain) > least
