"""Pooled hidden states of prompts, recorded once, in shards, so that an interrupted run resumes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.prompts import chat_template, model_digest, model_folder
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.atomic import replacing
from ianvs_specdec.common.storage.purpose import check_purpose
from ianvs_specdec.common.types import POOLING, Query, Sampling, messages_of
from ianvs_specdec.models.templates import with_template_time
from ianvs_specdec.models.validation import model_sizes, read_config
from ianvs_specdec.records.identity import FileDigests, digest
from ianvs_specdec.routing.outcomes.recorded import digests

Halves = NDArray[np.float16]

SHARD = 512
"""Queries of one file: some seconds of work."""
_UNASKED = Sampling(max_tokens=1)


@dataclass(frozen=True, eq=False)
class RecordedStates:
    """``rows``: float16 [queries, layers, 2 * hidden], of ``queries`` (digests of their texts, uint64, sorted).
    ``digest``: of the files of ``model``.
    """

    model: str
    digest: str
    layers: tuple[int, ...]
    queries: NDArray[np.uint64]
    rows: Halves

    def of(self, queries: Sequence[Query], layers: Sequence[int]) -> Halves:
        """float16 [queries, layers, 2 * hidden], of these queries. Raises UserError for one that is not recorded."""
        wanted = digests(queries)
        places = np.searchsorted(self.queries, wanted).clip(max=len(self.queries) - 1)
        if len(missing := np.flatnonzero(self.queries[places] != wanted)):
            raise UserError(f"the hidden states of the query with id {queries[missing[0]].id!r} are not recorded")
        return self.rows[places][:, [self.layers.index(layer) for layer in layers]]


def record(
    llm: LLM,
    queries: Sequence[Query],
    folder: Path,
    on_query: Callable[[], None] = lambda: None,
    check: Callable[[str, str], None] = lambda model, digest: None,
    sampling: Sampling = _UNASKED,
) -> RecordedStates:
    """The hidden states of all layers (as in ``engine.contracts.Target.open``) of each query's first turn, pooled over
    its prompt as in ``types.POOLING``, and kept in ``folder``.

    ``check`` gets the model's name and the digest of its files first, and may raise UserError. ``on_query`` is called
    for each query that is read now. Raises UserError if the folder holds other states or the back end returns none, and
    AnswerError for a query that does not fit.
    """
    llm.check_encode()
    files = model_folder(llm.model)
    sizes = model_sizes(read_config(files, key="model"))
    if sizes is None:
        raise UserError(f"the configuration of {llm.model} does not tell how many layers it has", key="model")
    layers = tuple(range(sizes.layers + 1))
    name, own = Path(llm.model).name, model_digest(llm.model, FileDigests(None))
    check(name, own)
    sampling = with_template_time(sampling.first(1), chat_template(llm), folder)
    asked, variables = [messages_of(query, []) for query in queries], sampling.chat_template_kwargs
    purpose = {
        "model": own,
        "layers": list(layers),
        "pooling": list(POOLING),
        "queries": digest([variables, asked] if variables else asked),
    }
    check_purpose(folder, purpose, what="hidden states of other queries, layers or models", key="states")
    shards = []
    for start in range(0, len(asked), SHARD):
        path = folder / f"{start // SHARD:05d}.npy"
        if not path.exists():
            states = []
            for messages in asked[start : start + SHARD]:
                states.append(llm.encode(messages, sampling, layers).states)
                on_query()
            with replacing(path) as temporary, temporary.open("wb") as file:
                np.save(file, np.stack(states))
        shards.append(np.load(path, allow_pickle=False))
    known, first = np.unique(digests(queries), return_index=True)
    return RecordedStates(name, own, layers, known, np.concatenate(shards)[first])
