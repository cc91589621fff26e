"""Likelihood of the reference given the answer, by a Hugging Face sequence-to-sequence model.

The exponential of BARTScore (Yuan et al. 2021, arXiv 2106.11520), the mean log-probability of the reference's tokens:
the geometric mean of their probabilities, 0 to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError, optional_import
from ianvs_specdec.models.json_files import without_bom
from ianvs_specdec.models.loading import load, loading_error

BATCH = 8
LONGEST = 1024
"""Maximum tokens of an answer or a reference, if the model has no limit."""


class Seq2SeqLikelihood:
    """``folder``: a model in Hugging Face format (BART, T5, ...). It is loaded at the first call, without running code
    from the folder. Raises UserError if it is missing.
    """

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.json").is_file():
            raise UserError(
                f"--quality seq2seq:{folder}: there is no model in it (no config.json): give the folder of a "
                "sequence-to-sequence model in Hugging Face format"
            )
        self._folder = folder
        self._model: Any = None
        self._tokenizer: Any = None

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """The geometric mean probability of the reference's tokens, for pairs of answer and reference."""
        self._load()
        # Sorted by length to reduce padding.
        order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][0]) + len(pairs[index][1]))
        found = [0.0] * len(pairs)
        for start in range(0, len(order), BATCH):
            indices = order[start : start + BATCH]
            for index, value in zip(indices, self._batch([pairs[index] for index in indices]), strict=True):
                found[index] = value
        return found

    @optional_import()
    def _load(self) -> None:
        if self._model is not None:
            return
        import transformers

        what = f"the sequence-to-sequence model {self._folder}"
        model = load("AutoModelForSeq2SeqLM", self._folder, what=what, dtype="float32")
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(
                without_bom(self._folder), local_files_only=True, trust_remote_code=False
            )
        except Exception as error:
            # Damaged files raise arbitrary exceptions.
            raise loading_error(what, error) from error
        self._model = model

    def _batch(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        import torch

        inputs, labels = (self._padded(texts) for texts in zip(*pairs, strict=True))
        targets = labels["input_ids"].masked_fill(labels["attention_mask"] == 0, -100)
        with torch.inference_mode():
            logits = self._model(**inputs, labels=targets).logits
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2).double(), targets, reduction="none")
        tokens = labels["attention_mask"].sum(1)
        return [math.exp(-value) for value in (losses.sum(1) / tokens).tolist()]

    def _padded(self, texts: Sequence[str]) -> dict[str, Any]:
        """Ids and mask, int64 [texts, longest]. An empty text is one end-of-sequence token."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        config = self._model.config
        longest = min(LONGEST, getattr(config, "max_position_embeddings", None) or LONGEST)
        end = config.eos_token_id if config.eos_token_id is not None else config.pad_token_id
        tokens = [self._tokenizer(text, truncation=True, max_length=longest).input_ids or [end] for text in texts]
        rows = [torch.tensor(ids) for ids in tokens]
        padded = pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id or 0)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        return {"input_ids": padded, "attention_mask": mask}
