"""A draft model's folder, looked at and loaded: the same token must be the same id in it and in the target.

torch is imported when a model is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.documents import unmarked
from ianvs_specdec.models.gguf.cached import files_of
from ianvs_specdec.models.layout import ModelSizes, check_model

if TYPE_CHECKING:
    from ianvs_specdec.engine import Target

TOLERATED = 0.01
"""Share of ids that may be different tokens in both: models of one family rename reserved tokens."""


def check_files(draft: str | Path, target: ModelSizes | None) -> None:
    """Raise ``UserError`` if the folder ``draft`` holds no whole causal LM. Whether its tokens are those of the
    ``target`` shows when both tokenizers are loaded: vocabularies may be padded to different sizes."""
    check_model(files_of(Path(draft), key="draft"), what=f"the draft model {draft}", key="draft")


def load_draft(folder: Path, target: Target) -> Target:
    """The model in ``folder``, in the target's dtype and on its device.

    Raises ``UserError`` where it cannot be loaded or has another tokenizer. Vocabularies may be padded to different
    sizes if the tokenizers agree; where one of the models comes without a tokenizer, the sizes must be equal.
    """
    from ianvs_specdec.models.loading import CAUSAL, load
    from ianvs_specdec.targets.registry import target_of

    source = getattr(getattr(target, "model", None), "name_or_path", "")
    files = files_of(folder, key="draft")
    ours, theirs = _tokens(source), _tokens(str(files))
    if ours and theirs:
        _check_tokens(folder, ours, theirs)
    what = f"the draft model {folder}"
    draft = target_of(load(CAUSAL, files, what=what, key="draft", dtype=target.dtype).to(target.device), consume=True)
    if not (ours and theirs) and len(draft.embedding) != len(target.embedding):
        raise UserError(
            f"the draft model {folder} has a vocabulary of {len(draft.embedding)} tokens, the target one of "
            f"{len(target.embedding)}: choose a draft model with the target's tokenizer",
            key="draft",
        )
    return draft


def _check_tokens(folder: Path, ours: dict[int, str], theirs: dict[int, str]) -> None:
    common = ours.keys() & theirs.keys()
    different = sorted(token for token in common if ours[token] != theirs[token])
    if len(different) > TOLERATED * len(common):
        example = different[0]
        raise UserError(
            f"the draft model {folder} has another tokenizer than the target: {len(different)} of {len(common)} token "
            f"ids differ, {example} is {theirs[example]!r} there and {ours[example]!r} here; choose a draft model with "
            "the target's tokenizer",
            key="draft",
        )


def _tokens(folder: str) -> dict[int, str]:
    """The tokenizer's tokens by id; none where there is no tokenizer."""
    import transformers

    if not Path(folder).is_dir() or not any(Path(folder).glob("tokenizer*")):
        return {}
    try:
        files = unmarked(Path(folder))
        tokenizer = transformers.AutoTokenizer.from_pretrained(files, local_files_only=True, trust_remote_code=False)
    except Exception:
        return {}
    return {number: token for token, number in tokenizer.get_vocab().items()}
