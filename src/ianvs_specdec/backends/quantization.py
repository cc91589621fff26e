"""Quantization of models that run in this process."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any, Literal

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.models.json_files import read_object

PACKAGES = {
    "bitsandbytes-int8": "bitsandbytes",
    "bitsandbytes-nf4": "bitsandbytes",
    "gptq": "gptqmodel",
    "awq": "gptqmodel",
}
"""Quantization -> the package that it needs."""

Quantization = Literal["none", "int8", "int4", "bitsandbytes-int8", "bitsandbytes-nf4", "gptq", "awq"]
BuiltIn = Literal["int8", "int4"]
BUILT_IN: tuple[BuiltIn, ...] = ("int8", "int4")
STORED = ("gptq", "awq")


def built_in(name: str | None) -> BuiltIn | None:
    """The quantization if it is one of our own, else None."""
    return next((each for each in BUILT_IN if each == name), None)


def loading_arguments(name: str | None, folder: Path, device: str) -> dict[str, Any]:
    """Additional arguments of ``from_pretrained``, which then places the model on ``device``.

    Raises UserError if the package is not installed, or the checkpoint in ``folder`` has another format.
    """
    if name is None:
        return {}
    if name in BUILT_IN:
        if device != "cpu":
            message = f"quantization {name} is computed on the CPU, not on {device}"
            instead = "bitsandbytes-int8" if name == "int8" else "bitsandbytes-nf4"
            raise UserError(f"{message}: set device to cpu, or quantization to {instead}", key="quantization")
        return {}
    package = PACKAGES[name]
    if importlib.util.find_spec(package) is None:
        raise UserError(f"quantization {name} needs the package {package}: pip install {package}", key="quantization")
    if name in STORED:
        kind = (read_object(folder / "config.json", key="model").get("quantization_config") or {}).get("quant_method")
        if kind != name:
            found = f"is stored as {kind}" if kind else "is not quantized"
            message = f"quantization {name} is for checkpoints made with it; {folder} {found}"
            raise UserError(
                f"{message}: name such a checkpoint under model, or another quantization", key="quantization"
            )
        return {"device_map": {"": device}}
    from transformers import BitsAndBytesConfig

    # It warns at every product that activations are rounded.
    logging.getLogger(package).setLevel(logging.ERROR)
    eight = name == "bitsandbytes-int8"
    settings = BitsAndBytesConfig(load_in_8bit=eight, load_in_4bit=not eight, bnb_4bit_quant_type="nf4")
    return {"device_map": {"": device}, "quantization_config": settings}
