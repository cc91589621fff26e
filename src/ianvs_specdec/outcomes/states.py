"""What a model thinks of queries before it answers: its hidden states at the end of each prompt, recorded once.

They are kept in shards, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.identity import digest
from ianvs_specdec.llm.base import LLM
from ianvs_specdec.storage.purpose import keep_to
from ianvs_specdec.storage.replacing import replacing
from ianvs_specdec.types import Query, Sampling, messages_of

SHARD = 512
"""Queries of one file: some seconds of work."""
_UNASKED = Sampling(max_tokens=1)


def record(
    llm: LLM,
    queries: Sequence[Query],
    layers: Sequence[int],
    folder: Path,
    model: str,
    on_query: Callable[[], None] = lambda: None,
) -> NDArray[np.float16]:
    """The hidden states of ``layers`` (as in ``decoding.contracts.Target.open``) at the end of the prompt of each
    query's first turn, float16 [queries, layers, hidden].

    ``folder`` holds them, and is refused where it holds those of other queries, layers or another ``model``, named by
    its digest. ``on_query`` is called for each one that is read now. Raises UserError where the back end has no hidden
    states, and AnswerError for a query that it cannot read.
    """
    asked = [messages_of(query, []) for query in queries]
    purpose = {"model": model, "layers": list(layers), "queries": digest(asked)}
    keep_to(folder, purpose, what="hidden states of other queries, layers or models", key="states")
    shards = []
    for start in range(0, len(asked), SHARD):
        path = folder / f"{start // SHARD:05d}.npy"
        if not path.exists():
            states = []
            for messages in asked[start : start + SHARD]:
                probed = llm.probe(messages, _UNASKED, layers)
                try:
                    states.append(probed.states.numpy().astype(np.float16))
                finally:
                    probed.drop()
                on_query()
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.save(file, np.stack(states))
        shards.append(np.load(path, allow_pickle=False))
    return np.concatenate(shards)
