"""How likely a Hugging Face sequence-to-sequence model finds the reference, given the answer.

BARTScore (Yuan et al. 2021, arXiv 2106.11520) is the mean log-probability of the reference's tokens. Its exponential,
the geometric mean of their probabilities, has the same order and is from 0 to 1.
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
"""Tokens of an answer or a reference that the model reads, where it does not say itself; the rest is cut off."""


class Seq2SeqLikelihood:
    """``folder``: a model in Hugging Face format (BART, T5, ...). No code of it is run. Raises UserError if it is not
    there; it is loaded when the first answer is to be scored.
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
        """For pairs of answer and reference the geometric mean of the probabilities of the reference's tokens."""
        self._load()
        # Texts of like length together: less of a batch is padding.
        order = sorted(range(len(pairs)), key=lambda place: len(pairs[place][0]) + len(pairs[place][1]))
        found = [0.0] * len(pairs)
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            for place, value in zip(places, self._batch([pairs[place] for place in places]), strict=True):
                found[place] = value
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
            # Damaged files raise whatever their reader has.
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
        """Ids and mask, int64 [texts, longest]. A text without tokens is one end of sequence."""
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
