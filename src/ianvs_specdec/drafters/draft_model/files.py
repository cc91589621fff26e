"""A draft model's folder, looked at before anything is loaded."""

from __future__ import annotations

from pathlib import Path

from ianvs_specdec.models.layout import ModelSizes, check_model


def check_files(draft: str | Path, target: ModelSizes | None) -> None:
    """Raise ``UserError`` if the folder ``draft`` holds no whole causal LM. Whether its tokens are those of the
    ``target`` shows when both tokenizers are loaded: vocabularies may be padded to different sizes."""
    check_model(Path(draft), what=f"the draft model {draft}", key="draft")
