"""A target's MTP layers: looked for in its checkpoint, and loaded.

torch is imported when they are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.headers import headers
from ianvs_specdec.models.mtp import mtp_pattern, mtp_tensors
from ianvs_specdec.models.validation import read_config

if TYPE_CHECKING:
    from ianvs_specdec.engine import Target

ADVICE = "choose a checkpoint that has them, or another method"


def check_target(settings: Mapping[str, Any], target: Path) -> None:
    """Raise ``UserError`` where the checkpoint in the folder ``target`` has no MTP layers."""
    tensors = headers(target, key="model")
    if not mtp_tensors(read_config(target, tensors, key="model"), tensors):
        raise UserError(f"{target} holds no weights of MTP layers: {ADVICE}", key="model")


def load_mtp(target: Target) -> Any:
    """The MTP layers of the checkpoint that ``target`` came from, transformers' ``MtpModel``, on its device.

    Raises ``UserError`` where there are none, where they are damaged, and where transformers does not know them.
    """
    from transformers.modeling_layers import MtpModel

    from ianvs_specdec.models.loading import check_finite, loading_error
    from ianvs_specdec.targets.huggingface import HuggingFaceTarget
    from ianvs_specdec.targets.states import keeps_every_position

    model: Any = getattr(target, "model", None)
    kind = getattr(getattr(model, "config", None), "model_type", "such a model")
    if not isinstance(target, HuggingFaceTarget) or not getattr(target.config, "num_mtp_layers", None):
        raise UserError(f"method mtp: transformers knows no MTP layers of {kind}: {ADVICE}", key="model")
    config = target.config
    folder = Path(model.config.name_or_path)
    check_target({}, folder)
    # By its class a model knows those of the published sizes only.
    known = {*(model._keys_to_ignore_on_load_unexpected or ()), mtp_pattern(target.layers, config.num_mtp_layers)}
    model._keys_to_ignore_on_load_unexpected = known
    what = f"the MTP layers of {folder}"
    try:
        if not keeps_every_position(model.config.get_mtp_config()):
            raise UserError("their state is not keys and values, which is not supported")
        loaded: Any = MtpModel.from_pretrained(model, trust_remote_code=False)
        check_finite(loaded.layers.named_parameters())
    except Exception as error:
        if "ignore_mismatched_sizes" in str(error):
            error = UserError("their weights have another shape than config.json asks for")
        raise loading_error(what, error, "model") from error
    # Not to the target's dtype: it shares buffers with the target, and has what the family keeps in float32.
    return loaded.to(target.device).eval()
