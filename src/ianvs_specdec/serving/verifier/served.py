"""What a verifier serves: a loaded model of our engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ianvs_specdec import lengths
from ianvs_specdec.backends.prompts import model_digest, model_folder
from ianvs_specdec.backends.specdec import EngineLLM, SharedEngine
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.drafters.datastore import fingerprint
from ianvs_specdec.records.identity import FileDigests
from ianvs_specdec.serving.protocol import served_name

FINGERPRINT_BYTES = 8
"""Of the model's: it distinguishes models, and proves nothing."""
UNTOLD = "full"
"""The length of a verifier that does not draft itself: an edge's draft is verified whole."""


@dataclass(frozen=True)
class Served(SharedEngine):
    """See ``split.proto`` for ``fingerprint`` and ``tokenizer``."""

    name: str
    fingerprint: bytes
    tokenizer: str


def served_by(llm: EngineLLM, length: Any, sessions: int) -> Served:
    """Load ``llm`` for ``sessions`` sessions. ``length`` rules the drafts of all, None = as its options say.

    Raises ``UserError`` for a method that cannot take over in the middle of an answer.
    """
    own = getattr(llm.options, "length", UNTOLD)
    shared = llm.shared(lengths.create(length or (UNTOLD if llm.method == "autoregressive" else own)), sessions)
    if shared.drafter.roots_in_prompt:
        raise UserError(
            f"method {llm.method} with start=official begins in the prompt: choose start=prompt", key="start"
        )
    return Served(
        **vars(shared),
        name=served_name(llm.model),
        fingerprint=bytes.fromhex(model_digest(llm.model, FileDigests(None)))[:FINGERPRINT_BYTES],
        tokenizer=fingerprint(model_folder(llm.model)),
    )
