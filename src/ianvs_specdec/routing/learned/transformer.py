"""Kind ``encoder``: a fine-tuned encoder or causal LM with one output, or a small encoder trained from scratch.

Supports the models that transformers loads for sequence classification. The logit is trained with cross-entropy on
labels from 0 to 1, as in Hybrid LLM (arXiv 2404.14618, DeBERTa) and RouteLLM (arXiv 2406.18665, BERT and Llama).
"""

from __future__ import annotations

import copy
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import Count, Settings, Text
from ianvs_specdec.common.storage.atomic import write_atomically
from ianvs_specdec.common.types import Query
from ianvs_specdec.models.json_files import read_object
from ianvs_specdec.models.loading import check_device
from ianvs_specdec.routing.learned.classifier import Classifier
from ianvs_specdec.routing.learned.transformer_model import (
    QueryTokens,
    pretrained,
    tokenizer_of,
    untrained,
    window,
    word_tokenizer,
)
from ianvs_specdec.routing.outcomes.recorded import Floats, text_of

log = logging.getLogger(__name__)

MODEL, SETTINGS = "encoder", "encoder.json"
SMALL = 16_000_000
"""Models with fewer weights score one query on one thread."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LAYERS, WIDTH = 1, 128
WARM_UP = 0.1
"""Share of the steps for the warm-up of the learning rate."""
CLIP = 1.0
SCORED_AT_ONCE = 64
SORTED_BATCHES = 16
"""Batches per chunk of queries sorted by length, which reduces padding in a random order."""

Tokens = list[int]


Fraction = Annotated[float, Field(ge=0, lt=1)]


class EncoderOptions(Settings):
    """``model``: a folder in Hugging Face format or a name on the hub; without it an encoder with ``layers`` layers and
    this ``width`` is trained from scratch, on the words of the queries or on the tokens of ``tokenizer`` (a folder).
    Longer queries than ``max_length`` tokens are truncated in the middle. ``dtype``: of the stored weights.
    """

    noun = "option of encoder"

    model: Text | None = None
    layers: Count | None = None
    width: Count | None = None
    tokenizer: Text | None = None
    max_length: Count = 256
    epochs: Count | None = None
    learning_rate: Annotated[float, Field(gt=0, lt=1)] | None = None
    batch_size: Count = 16
    weight_decay: Fraction = 0.01
    dropout: Fraction = 0.1
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: Text = "cpu"


class TransformerClassifier(Classifier):
    """A sequence classification model with one logit per query."""

    Options: ClassVar[type[Settings]] = EncoderOptions
    FOLDS: ClassVar[int] = 1

    def __init__(self, model: Any, tokens: QueryTokens, dtype: str) -> None:
        self._model, self._tokens, self._dtype = model.eval(), tokens, dtype
        # Rounded as stored, so that saving does not change scores.
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.copy_(parameter.to(DTYPES[dtype]))
        self._weights = sum(parameter.numel() for parameter in self._model.parameters())

    @classmethod
    def fit(cls, queries: Sequence[Query], targets: Floats, *, seed: int = 0, **options: Any) -> TransformerClassifier:
        given = EncoderOptions.parse(options)
        for name in ("layers", "width", "tokenizer"):
            if given.model and getattr(given, name):
                raise UserError(f"{name} is for an encoder trained from scratch: a model has its own", key=name)
        # Keep the global generator unchanged.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            texts = [text_of(query) for query in queries]
            model, tokenizer = _model(given, texts)
            tokens = QueryTokens(tokenizer, window(model, given.max_length), model.config.pad_token_id)
            model.config.pad_token_id = tokens.pad
            check_device(given.device)
            model.to(given.device)
            train(model, [tokens(text) for text in texts], targets, given, tokens.pad, seed)
        return cls(model.cpu(), tokens, given.dtype)

    def score(self, queries: Sequence[Query]) -> Floats:
        inputs = [self._tokens(text_of(query)) for query in queries]
        # Synchronizing threads takes longer than a small model.
        with _threads(1 if len(inputs) == 1 and self._weights < SMALL else torch.get_num_threads()):
            return scores_of(self._model, inputs, self._tokens.pad)

    def save(self, folder: Path) -> None:
        stored = copy.deepcopy(self._model).to(DTYPES[self._dtype])
        stored.save_pretrained(folder / MODEL)
        self._tokens.tokenizer.save_pretrained(folder / MODEL)
        # safetensors creates files with mode 0600.
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
    """This number of torch threads inside."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _model(given: EncoderOptions, texts: Sequence[str]) -> tuple[Any, Any]:
    if given.model:
        return pretrained(given.model, start=True)
    tokenizer = tokenizer_of(given.tokenizer) if given.tokenizer else word_tokenizer(texts)
    shape = {"layers": given.layers or LAYERS, "width": given.width or WIDTH}
    return untrained(tokenizer, **shape, positions=given.max_length + 2, dropout=given.dropout), tokenizer


def logits_of(model: Any, inputs: Sequence[Tokens], pad: int) -> torch.Tensor:
    """float32 [inputs]. A single input has no padding and no mask."""
    rows = [torch.tensor(tokens, device=model.device) for tokens in inputs]
    ids = pad_sequence(rows, batch_first=True, padding_value=pad)
    if len(rows) == 1:
        return model(input_ids=ids).logits[:, 0].float()
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return model(input_ids=ids, attention_mask=mask).logits[:, 0].float()


@torch.inference_mode()
def scores_of(model: Any, inputs: Sequence[Tokens], pad: int) -> Floats:
    """The sigmoid of the logits, float64 [inputs], of a model in evaluation mode."""
    scores = np.zeros(len(inputs))
    order = np.argsort([len(tokens) for tokens in inputs], kind="stable")
    for start in range(0, len(order), SCORED_AT_ONCE):
        rows = order[start : start + SCORED_AT_ONCE]
        scores[rows] = torch.sigmoid(logits_of(model, [inputs[row] for row in rows], pad).double()).cpu().numpy()
    return scores


def train(model: Any, inputs: Sequence[Tokens], targets: Floats, options: EncoderOptions, pad: int, seed: int) -> None:
    """Train ``model`` in place on token ids and labels (float64 [inputs], 0 to 1), with torch's global generator."""
    epochs = options.epochs or (3 if options.model else 5)
    rate = options.learning_rate or (3e-5 if options.model else 2e-3)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(inputs))
    steps = epochs * math.ceil(len(rows) / options.batch_size)
    optimizer = torch.optim.AdamW(_groups(model, options.weight_decay), lr=rate)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    labels = torch.tensor(targets, dtype=torch.float32, device=model.device)
    model.train()
    for epoch in range(epochs):
        started, total = time.perf_counter(), 0.0
        for batch in _batches(inputs, rows, options.batch_size, rng):
            logits = logits_of(model, [inputs[row] for row in batch], pad)
            loss = functional.binary_cross_entropy_with_logits(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            rates.step()
            total += loss.item() * len(batch)
        seconds = time.perf_counter() - started
        log.info("epoch %d of %d: loss %.4f, %.0f s", epoch + 1, epochs, total / len(rows), seconds)
    model.eval()


def _rate(step: int, steps: int) -> float:
    """Linear warm-up and decay. Unlike transformers' schedule it does not start at 0."""
    warm_up = max(1.0, WARM_UP * steps)
    return min((step + 1) / warm_up, max(0.0, (steps - step) / max(1.0, steps - warm_up)))


def _groups(model: Any, decay: float) -> list[dict[str, Any]]:
    """Parameter groups without weight decay of biases and norms."""
    parameters = list(model.parameters())
    return [
        {"params": [one for one in parameters if one.ndim >= 2], "weight_decay": decay},
        {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0},
    ]


def _batches(inputs: Sequence[Tokens], rows: np.ndarray, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    shuffled = rng.permutation(rows)
    batches = []
    for start in range(0, len(shuffled), size * SORTED_BATCHES):
        chunk = shuffled[start : start + size * SORTED_BATCHES]
        chunk = chunk[np.argsort([len(inputs[row]) for row in chunk], kind="stable")]
        batches += [chunk[i : i + size] for i in range(0, len(chunk), size)]
    for index in rng.permutation(len(batches)):
        yield batches[index]
