"""Vectors of whole texts by a model of sentence-transformers, which is imported only where one is named."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.common.errors import UserError, packages
from ianvs_specdec.routing.learned.reading import LONGEST

BATCH = 32


class Sentences:
    """``name``: a folder, or a model on the Hugging Face hub. Raises UserError if it cannot be loaded. ``known`` takes
    up the vectors of all texts, none of which is encoded again; without it the time of each call is that of new texts.
    """

    def __init__(self, name: str, known: dict[str, NDArray[np.float32]] | None = None) -> None:
        self.name, self._model, self.known = name, _loaded(name), known

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors of length 1, float32 [texts, dimensions]."""
        bounded = [text[:LONGEST] for text in texts]
        known = {} if self.known is None else self.known
        if new := [text for text in dict.fromkeys(bounded) if text not in known]:
            how = {"normalize_embeddings": True, "convert_to_numpy": True, "show_progress_bar": False}
            known |= zip(new, self._model.encode(new, batch_size=BATCH, **how), strict=True)
        return np.array([known[text] for text in bounded], dtype=np.float32)


@lru_cache(maxsize=1)
def _loaded(name: str) -> Any:
    with packages():
        from sentence_transformers import SentenceTransformer
    try:
        return SentenceTransformer(name, device="cpu", trust_remote_code=False)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"the embedding {name!r} cannot be loaded: {reason:.300}", key="embedding") from error
