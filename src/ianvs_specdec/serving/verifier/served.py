"""From a loaded model of our engine to what a verifier serves."""

from __future__ import annotations

from typing import Any

from ianvs_specdec import lengths
from ianvs_specdec.backends.prompts import model_folder
from ianvs_specdec.backends.specdec import EngineLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.datastore import fingerprint
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.serving.protocol import served_name
from ianvs_specdec.serving.verifier.service import Served

FINGERPRINT_BYTES = 8
"""Of the model's: it tells models apart, and proves nothing."""
UNTOLD = "full"
"""The length of a verifier that does not draft itself: an edge's draft is verified whole."""


def served_by(llm: EngineLLM, length: Any, sessions: int) -> Served:
    """Load ``llm`` and have it serve so many sessions. ``length`` rules the drafts of all, None = as its options say.

    Raises ``UserError`` for a method that cannot take over in the middle of an answer.
    """
    own = getattr(llm.options, "length", UNTOLD)
    drafts = llm.method != "autoregressive"
    shared = llm.shared(lengths.create(length or (own if drafts else UNTOLD)), sessions)
    if shared.drafter.roots_in_prompt:
        raise UserError(
            f"method {llm.method} with start=official begins in the prompt: choose start=prompt", key="start"
        )
    folder = model_folder(llm.model)
    return Served(
        served_name(llm.model),
        bytes.fromhex(FileDigests(None).folder(folder))[:FINGERPRINT_BYTES],
        fingerprint(folder),
        shared.target,
        shared.drafter,
        shared.batcher,
        shared.eos_ids,
        shared.text,
    )
