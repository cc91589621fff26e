"""Models of transformers, loaded whole or not at all.

Left to itself transformers draws the weights that a file lacks at random, and passes over those that it has no place
for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import UserError, missing_package_error, optional_import
from ianvs_specdec.models.headers import counted, headers
from ianvs_specdec.models.json_files import without_bom
from ianvs_specdec.models.mtp import mtp_tensors
from ianvs_specdec.models.validation import check_model, missing_tensors, unexpected_tensors

if TYPE_CHECKING:
    from torch import Tensor

_TURN = threading.Lock()
"""While transformers loads a model, it changes what all threads see: one that loads at the same time lacks weights."""

CAUSAL, CLASSIFIER = "AutoModelForCausalLM", "AutoModelForSequenceClassification"


@optional_import()
def load(kind: str, folder: Path, *, what: str, key: str | None = None, start: bool = False, **settings: Any) -> Any:
    """The model in ``folder``, in evaluation mode: ``kind`` names the class of transformers, ``settings`` are further
    arguments of its ``from_pretrained``. Runs no code of the model's own and unpickles nothing.

    With ``start`` the model is where training starts: what is put on top of the base model may be new.

    Raises UserError, with the ``key`` at fault and ``what`` the model is called, for a folder that lacks weights, has
    others than its config.json asks for, or such as are not finite.
    """
    check_model(folder, what=what, key=key, causal=kind == CAUSAL)
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with _TURN:
            model, told = getattr(transformers, kind).from_pretrained(
                without_bom(folder),
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                # They are reported below, by name.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **settings,
            )
        _check_told(model, told, start)
        check_finite([*model.named_parameters(), *model.named_buffers()])
    except Exception as error:
        # Damaged files raise whatever their reader has, safetensors' and tokenizers' own exceptions among them.
        raise missing_package_error(error) or loading_error(what, error, key) from error
    return model.eval()


def loading_error(what: str, error: Exception, key: str | None = None) -> UserError:
    """The error for a model, or its tokenizer, that cannot be loaded, on one line."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"cannot load {what}: {reason}", key=key)


def check_finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError that names the first tensors, given with their names, that hold NaN or infinity."""
    import torch

    floats = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    wrong = []
    with torch.inference_mode():
        for name, tensor in tensors:
            # A sum tells, and takes a thirtieth of the time of a look at every number. It may be beyond the type's
            # range where no number is; then the extremes tell, which take twice as long.
            if tensor.dtype not in floats or tensor.is_meta or not tensor.numel() or tensor.sum().isfinite():
                continue
            if not all(extreme.isfinite() for extreme in torch.aminmax(tensor)):
                wrong.append(name)
    if wrong:
        raise UserError(f"{counted(wrong, 'holds', 'hold')} numbers that are not finite (NaN or infinity)")


def check_stored(folder: Path, *, what: str, key: str | None = None) -> None:
    """``check_model``, and a look at the weights as they are stored, for engines that load them themselves. One tensor
    is in memory at a time."""
    check_model(folder, what=what, key=key, vllm=True)
    from safetensors import safe_open

    try:
        for path in dict.fromkeys(header.file for header in headers(folder).values()):
            with safe_open(path, framework="pt") as file:
                check_finite((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 - not a mapping
    except Exception as error:
        raise loading_error(what, error, key) from error


def check_device(name: str, *, key: str = "device") -> None:
    """Raise UserError if torch has no device ``name`` here. Imports torch only for one that a machine may lack."""
    if name == "cpu":
        return
    with optional_import():
        import torch
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise UserError(f"device {name!r} is not there: {reason}", key=key) from error


def _check_told(model: Any, told: Mapping[str, Any], start: bool) -> None:
    """``told`` is transformers' report on the loading."""

    def at_fault(names: Iterable[str]) -> list[str]:
        base = f"{model.base_model_prefix}."
        return [name for name in names if not start or (name.startswith(base) and ".pooler." not in name)]

    if missing := at_fault(told["missing_keys"]):
        raise missing_tensors(missing)
    if shaped := at_fault(name for name, *_ in told["mismatched_keys"]):
        raise UserError(f"{counted(shaped, 'has', 'have')} another shape than config.json asks for")
    if told["error_msgs"]:
        raise UserError(str(told["error_msgs"][0]))
    # What a quantized checkpoint holds besides its weights is its package's own affair. Where training starts, the
    # layers may be the first of more.
    unexpected = set(told["unexpected_keys"])
    unexpected -= {*mtp_tensors(model.config.to_dict(), unexpected)}
    if not start and getattr(model, "hf_quantizer", None) is None and unexpected:
        raise unexpected_tensors(unexpected)
