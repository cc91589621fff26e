"""Models of the shape of known ones with random weights: what a step costs does not depend on what the weights are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ianvs_specdec.common.errors import UserError

NUMBERS = (
    *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    "vocab_size",
)
SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "qwen2.5-0.5b": ("qwen2", (896, 4864, 24, 14, 2, 151936)),
    "qwen2.5-1.5b": ("qwen2", (1536, 8960, 28, 12, 2, 151936)),
    "7b": ("llama", (4096, 11008, 32, 32, 32, 32000)),
    "tiny": ("llama", (64, 128, 7, 4, 2, 384)),
}
"""Family and ``NUMBERS``: of Qwen2.5 0.5B and 1.5B, of Llama 2 7B, and of one for tests."""
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        "rms_norm_eps": 1e-6,
    },
    "llama": {},
}
POSITIONS = 4096
DEVIATION = 0.02


def random_model(shape: str, dtype: str, device: str) -> Any:
    """A causal LM of transformers on ``device``. Raises ``UserError`` where there is no such device."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError("--device cuda: no GPU here; try --device cpu --shape tiny")
    family, sizes = SHAPES[shape]
    settings = {**FAMILIES[family], **dict(zip(NUMBERS, sizes, strict=True))}
    config = AutoConfig.for_model(
        family, **settings, max_position_embeddings=POSITIONS, eos_token_id=None, bos_token_id=1
    )
    with torch.device(device), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 and not name.endswith("bias"):
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=DEVIATION)
    return model


def save(model: Any, folder: Path) -> None:
    """The model as a folder that can be exported to GGUF, with a tokenizer that knows bytes and one merge: llama.cpp
    wants some."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))


def bytes_read(model: Any, quantization: str | None) -> int:
    """What a step of one token has to read of the weights: all but the input embedding. A scale for every 32 weights
    adds half a bit to 4; the output embedding has 8 bits then."""
    output = model.get_output_embeddings().weight
    layers = sum(p.numel() for p in model.parameters()) - model.get_input_embeddings().weight.numel()
    if output is not model.get_input_embeddings().weight:
        layers -= output.numel()
    wide = 8.0 * output.element_size()
    bits, output_bits = {None: (wide, wide), "int8": (8.0, 8.0), "int4": (4.5, 8.0)}[quantization]
    return int((layers * bits + output.numel() * output_bits) / 8)
