"""A transformer reads the query: an encoder or a causal LM with one output, fine-tuned, or a small one from nothing.

Any model that transformers loads for sequence classification will do. Its one logit is trained with cross-entropy on
labels from 0 to 1, as Hybrid LLM (arXiv 2404.14618) does with DeBERTa, RouteLLM (arXiv 2406.18665) with BERT and Llama.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import torch

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.types import Query
from ianvs_specdec.models.documents import read_object
from ianvs_specdec.models.loading import check_device
from ianvs_specdec.records.identity import write_atomically
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.learned.transformer_model import (
    QueryTokens,
    pretrained,
    tokenizer_of,
    untrained,
    window,
    word_tokenizer,
)
from ianvs_specdec.routing.learned.transformer_training import Schedule, scores_of, train
from ianvs_specdec.routing.outcomes.recorded import Floats, text_of

MODEL, SETTINGS = "encoder", "encoder.json"
SMALL = 16_000_000
"""Weights: a smaller model scores one query on one thread."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYERS, WIDTH = 1, 128
FINE_TUNING: dict[str, Any] = {"epochs": 3, "learning_rate": 3e-5}
FROM_NOTHING: dict[str, Any] = {"epochs": 5, "learning_rate": 2e-3}


class TransformerClassifier(Classifier):
    """One logit per query.

    ``model`` is a folder in Hugging Face format or a name on the hub, of which ``layers`` keeps the first few; without
    it an encoder of ``layers`` layers and the ``width`` is trained from nothing, on the words of the queries or on the
    tokens of ``tokenizer`` (a folder). ``max_length`` tokens are read: of a longer query its beginning and its end.
    Training takes ``epochs``, or ends after ``patience`` epochs in which ``validation``, the share of the queries that
    it does not see, is predicted no better; the best state is kept. ``dtype`` is how the weights are stored, ``device``
    where training takes place.
    """

    OPTIONS: ClassVar[dict[str, Any]] = {
        "model": None,
        "layers": None,
        "width": None,
        "tokenizer": None,
        "max_length": 256,
        "epochs": None,
        "learning_rate": None,
        "batch_size": 16,
        "patience": 3,
        "validation": 0.1,
        "weight_decay": 0.01,
        "dropout": 0.1,
        "dtype": "float32",
        "device": "cpu",
    }
    FOLDS: ClassVar[int] = 1

    def __init__(self, model: Any, tokens: QueryTokens, dtype: str) -> None:
        self._model, self._tokens, self._dtype = model.eval(), tokens, dtype
        # Weights are used as they are stored, so that a router scores alike before and after it is saved.
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.copy_(parameter.to(DTYPES[dtype]))
        self._weights = sum(parameter.numel() for parameter in self._model.parameters())

    @classmethod
    def fit(cls, queries: Sequence[Query], targets: Floats, *, seed: int = 0, **options: Any) -> TransformerClassifier:
        given = {name: _number(value) for name, value in {**cls.OPTIONS, **options}.items()}
        _check(given)
        # Weights and dropout are drawn from a generator of their own: nobody else's numbers change.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            texts = [text_of(query) for query in queries]
            model, tokenizer = _model(given, texts)
            tokens = QueryTokens(tokenizer, window(model, given["max_length"]), model.config.pad_token_id)
            model.config.pad_token_id = tokens.pad
            check_device(given["device"])
            model.to(given["device"])
            inputs = [tokens(text) for text in texts]
            defaults = FINE_TUNING if given["model"] else FROM_NOTHING
            schedule = Schedule(
                **{name: defaults[name] if given[name] is None else given[name] for name in defaults},
                **{name: given[name] for name in ("batch_size", "patience", "validation", "weight_decay")},
                seed=seed,
            )
            train(model, inputs, targets, schedule, tokens.pad)
        return cls(model.cpu(), tokens, given["dtype"])

    def score(self, queries: Sequence[Query]) -> Floats:
        inputs = [self._tokens(text_of(query)) for query in queries]
        # Threads that wait for each other take longer than so little work, many times as long beside other programs.
        with _threads(1 if len(inputs) == 1 and self._weights < SMALL else torch.get_num_threads()):
            return scores_of(self._model, inputs, self._tokens.pad)

    def save(self, folder: Path) -> None:
        stored = copy.deepcopy(self._model).to(DTYPES[self._dtype])
        stored.save_pretrained(folder / MODEL)
        self._tokens.tokenizer.save_pretrained(folder / MODEL)
        # The writer of safetensors makes files that only their owner can read.
        for path in (folder / MODEL).iterdir():
            path.chmod(0o644)
        settings = {"max_length": self._tokens.max_length, "dtype": self._dtype}
        write_atomically(folder / SETTINGS, json.dumps(settings) + "\n")

    @classmethod
    def load(cls, folder: Path) -> TransformerClassifier:
        path = folder / SETTINGS
        try:
            settings = read_object(path, key="path")
            max_length, dtype = int(settings["max_length"]), str(settings["dtype"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise UserError(f"{path}: cannot be read ({error}); train the router anew", key="path") from error
        if dtype not in DTYPES:
            raise unknown(f"dtype in {path}", dtype, DTYPES, key="path")
        model, tokenizer = pretrained(str(folder / MODEL))
        return cls(model, QueryTokens(tokenizer, max_length, model.config.pad_token_id), dtype)


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """So many threads of torch, for whoever calls."""
    before = torch.get_num_threads()
    if number != before:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        if number != before:
            torch.set_num_threads(before)


def _model(given: dict[str, Any], texts: Sequence[str]) -> tuple[Any, Any]:
    if given["model"]:
        return pretrained(given["model"], given["layers"], start=True)
    tokenizer = tokenizer_of(given["tokenizer"]) if given["tokenizer"] else word_tokenizer(texts)
    shape = {"layers": given["layers"] or LAYERS, "width": given["width"] or WIDTH}
    return untrained(tokenizer, **shape, positions=given["max_length"] + 2, dropout=given["dropout"]), tokenizer


def _number(value: Any) -> Any:
    """YAML reads 3e-5 as a text."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _check(given: dict[str, Any]) -> None:
    """Raise UserError for options that cannot work."""
    rules: list[tuple[str, type | tuple[type, ...], Callable[[Any], bool], str]] = [
        ("layers width epochs max_length batch_size patience", int, lambda v: v >= 1, "a whole number from 1"),
        ("learning_rate", (int, float), lambda v: 0 < v < 1, "a number between 0 and 1"),
        ("weight_decay validation dropout", (int, float), lambda v: 0 <= v < 1, "a number from 0 to below 1"),
        ("model tokenizer device", str, bool, "a text"),
    ]
    for names, kinds, ok, wanted in rules:
        for name in names.split():
            value = given[name]
            if value is None and TransformerClassifier.OPTIONS[name] is None:
                continue
            if isinstance(value, bool) or not isinstance(value, kinds) or not ok(value):
                raise UserError(f"{name} must be {wanted}, not {value!r}", key=name)
    if given["dtype"] not in DTYPES:
        raise unknown("dtype", given["dtype"], DTYPES, key="dtype")
    for name in ("width", "tokenizer"):
        if given["model"] and given[name]:
            raise UserError(f"{name} is for an encoder trained from scratch: a model has its own", key=name)
