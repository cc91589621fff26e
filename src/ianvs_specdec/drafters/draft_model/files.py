"""A draft model's folder, looked at and loaded, and whether its tokens are those of the target.

torch is imported when a model is loaded.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.gguf.cache import hf_folder
from ianvs_specdec.models.json_files import without_bom
from ianvs_specdec.models.validation import ModelSizes, check_model

if TYPE_CHECKING:
    from ianvs_specdec.drafters.draft_model.translation import Translation
    from ianvs_specdec.engine import Target

log = logging.getLogger(__name__)

TOLERATED = 0.01
"""Share of ids that may be different tokens in both: models of one family rename reserved tokens."""


def check_files(draft: str | Path, target: ModelSizes | None) -> None:
    """Raise ``UserError`` if the folder ``draft`` holds no whole causal LM."""
    check_model(hf_folder(Path(draft), key="draft"), what=f"the draft model {draft}", key="draft")


def check_target(settings: Mapping[str, Any], target: Path) -> None:
    """Say in a warning where the draft model has another tokenizer than the model in the folder ``target``. Raises
    ``UserError`` for a tree of such drafts."""
    draft = hf_folder(Path(settings["draft"]), key="draft")
    files = [folder / "tokenizer.json" for folder in (target, draft)]
    if not all(file.is_file() for file in files) or files[0].read_bytes() == files[1].read_bytes():
        return
    from tokenizers import Tokenizer

    try:
        ours, theirs = (Tokenizer.from_file(str(file)).get_vocab() for file in files)
    except Exception:
        return  # told by what loads it
    if _different(ours, theirs):
        check_branches(settings.get("branches") or 1)
        _warn(f"the draft model {draft} has another tokenizer than {target}: its drafts are translated as text")


def check_branches(branches: int) -> None:
    """Raise ``UserError`` unless drafts of another tokenizer, which are chains, were asked for."""
    if branches > 1:
        reason = f"branches {branches}: a draft model with another tokenizer drafts chains"
        raise UserError(f"{reason}; leave branches out, or choose one with the target's tokenizer", key="branches")


_warn = functools.cache(log.warning)
"""Once in a process: a job looks at a folder for each of its test cases."""


def load_draft(folder: Path, target: Target) -> tuple[Target, Translation | None]:
    """The model in ``folder``, in the target's dtype and on its device, and what translates where it has another
    tokenizer than the target.

    Raises ``UserError`` where it cannot be loaded. Vocabularies may be padded to different sizes if the tokenizers
    agree; where one of the models comes without a tokenizer, the sizes must be equal.
    """
    from ianvs_specdec.drafters.draft_model.translation import Translation
    from ianvs_specdec.models.loading import CAUSAL, load
    from ianvs_specdec.targets.registry import create_target

    source = getattr(getattr(target, "model", None), "name_or_path", "")
    files = hf_folder(folder, key="draft")
    ours, theirs = _tokenizer(source), _tokenizer(str(files))
    what = f"the draft model {folder}"
    draft = create_target(
        load(CAUSAL, files, what=what, key="draft", dtype=target.dtype).to(target.device), consume=True
    )
    if ours and theirs:
        return draft, Translation(ours, theirs) if _different(ours.get_vocab(), theirs.get_vocab()) else None
    if len(draft.embedding) != len(target.embedding):
        raise UserError(
            f"the draft model {folder} has a vocabulary of {len(draft.embedding)} tokens, the target one of "
            f"{len(target.embedding)}: choose a draft model with the target's tokenizer, or one that comes with its "
            "own (tokenizer.json)",
            key="draft",
        )
    return draft, None


def _different(ours: Mapping[str, int], theirs: Mapping[str, int]) -> list[str]:
    """The tokens of two vocabularies with ids that both have but for other tokens; none where that is tolerated."""
    by_id = {number: token for token, number in ours.items()}
    common = [(number, token) for token, number in theirs.items() if number in by_id]
    different = [token for number, token in common if by_id[number] != token]
    return different if len(different) > TOLERATED * len(common) else []


def _tokenizer(folder: str) -> Any:
    import transformers

    if not Path(folder).is_dir() or not any(Path(folder).glob("tokenizer*")):
        return None
    try:
        files = without_bom(Path(folder))
        return transformers.AutoTokenizer.from_pretrained(files, local_files_only=True, trust_remote_code=False)
    except Exception:
        return None
