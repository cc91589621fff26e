"""Load models of transformers and reject incomplete ones.

By default transformers initializes missing weights randomly and ignores unexpected ones.
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
"""transformers changes global state while it loads a model: concurrent loads would lack weights."""

CAUSAL, CLASSIFIER = "AutoModelForCausalLM", "AutoModelForSequenceClassification"


@optional_import()
def load(kind: str, folder: Path, *, what: str, key: str | None = None, start: bool = False, **settings: Any) -> Any:
    """The model in ``folder``, in evaluation mode. ``kind``: a class of transformers; ``settings``: arguments of its
    ``from_pretrained``. Runs no code of the model and unpickles nothing.

    ``start``: the model is the start of a training, so that weights outside the base model may be missing.

    Raises UserError with ``key``, in which ``what`` names the model, for weights that are missing, do not match
    config.json or are not finite.
    """
    check_model(folder, what=what, key=key, causal=kind == CAUSAL)
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    try:
        with _TURN:
            model, report = getattr(transformers, kind).from_pretrained(
                without_bom(folder),
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                # Reported below.
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **settings,
            )
        _check_report(model, report, start)
        check_finite([*model.named_parameters(), *model.named_buffers()])
    except Exception as error:
        # Readers of damaged files raise their own exceptions.
        raise missing_package_error(error) or loading_error(what, error, key) from error
    return model.eval()


def loading_error(what: str, error: Exception, key: str | None = None) -> UserError:
    """The error for a model or tokenizer that cannot be loaded, on one line."""
    reason = " ".join(str(error).split()) or type(error).__name__
    return UserError(f"cannot load {what}: {reason}", key=key)


def check_finite(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise UserError that names the first tensors with NaN or infinity."""
    import torch

    floats = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    wrong = []
    with torch.inference_mode():
        for name, tensor in tensors:
            # A sum is 30 times as fast as a check of every number. It may overflow; then check the extremes.
            if tensor.dtype not in floats or tensor.is_meta or not tensor.numel() or tensor.sum().isfinite():
                continue
            if not all(extreme.isfinite() for extreme in torch.aminmax(tensor)):
                wrong.append(name)
    if wrong:
        raise UserError(f"{counted(wrong, 'holds', 'hold')} numbers that are not finite (NaN or infinity)")


def check_stored(folder: Path, *, what: str, key: str | None = None) -> None:
    """``check_model`` and ``check_finite`` of the stored weights, for engines that load them themselves. Reads one
    tensor at a time."""
    check_model(folder, what=what, key=key, vllm=True)
    from safetensors import safe_open

    try:
        for path in dict.fromkeys(header.file for header in headers(folder).values()):
            with safe_open(path, framework="pt") as file:
                check_finite((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118 - not a mapping
    except Exception as error:
        raise loading_error(what, error, key) from error


def check_device(name: str, *, key: str = "device") -> None:
    """Raise UserError if torch has no device ``name``. Does not import torch for ``cpu``."""
    if name == "cpu":
        return
    with optional_import():
        import torch
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise UserError(f"device {name!r} is not available: {reason}", key=key) from error


def _check_report(model: Any, report: Mapping[str, Any], start: bool) -> None:
    """``report``: transformers' ``output_loading_info``."""

    def at_fault(names: Iterable[str]) -> list[str]:
        base = f"{model.base_model_prefix}."
        return [name for name in names if not start or (name.startswith(base) and ".pooler." not in name)]

    if missing := at_fault(report["missing_keys"]):
        raise missing_tensors(missing)
    if shaped := at_fault(name for name, *_ in report["mismatched_keys"]):
        raise UserError(f"{counted(shaped, 'has', 'have')} another shape than config.json asks for")
    if report["error_msgs"]:
        raise UserError(str(report["error_msgs"][0]))
    # Quantized checkpoints hold further tensors. A training may start from the first layers of a model.
    unexpected = set(report["unexpected_keys"])
    unexpected -= {*mtp_tensors(model.config.to_dict(), unexpected)}
    if not start and getattr(model, "hf_quantizer", None) is None and unexpected:
        raise unexpected_tensors(unexpected)
