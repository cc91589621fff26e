"""DFlash heads in the authors' checkpoint format (Chen et al. 2026, arXiv 2602.06036; github.com/z-lab/dflash).

A folder with ``config.json`` (the keys of a Qwen3 of a few layers, and ``dflash_config`` with ``block_size``,
``mask_token_id`` and ``target_layer_ids``) and ``model.safetensors`` or ``pytorch_model.bin``. With h = hidden size and
t = number of target layers read: ``fc.weight [h, t * h]`` joins the outputs of these layers, ``hidden_norm.weight [h]``
norms them, ``layers.{i}.*`` are layers of Qwen3, ``norm.weight [h]`` precedes the target's output matrix. Embeddings
are the target's.

The assistants of transformers (``MuseGlimmerAssistantModel``) have the keys of ``dflash_config`` beside the others, and
``encoder.fc`` and ``encoder.output_norm_enc`` for ``fc`` and ``hidden_norm``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Count, Settings, validated
from ianvs_specdec.drafters.tensors import PADDED, Shapes, check_shapes, find, read_config, read_shapes
from ianvs_specdec.models.rotary import ROTATIONS, rotary
from ianvs_specdec.models.validation import ModelSizes

WHAT = "DFlash head"
FILES = ("model.safetensors", "pytorch_model.bin")
AUTHORS, ASSISTANT = "DFlashDraftModel", "MuseGlimmerAssistantModel"
RENAMED = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}
NEUTRAL = {
    "output_multiplier": 1,
    "input_embedding_scale": 1,
    "partial_rotary_factor": 1,
    "final_logit_softcapping": 0,
    "attention_bias": False,
}
"""Keys of a configuration by which a head computes something else, unless they have this value."""

Attention = Literal["full_attention", "sliding_attention"]
Index = Annotated[int, Field(ge=0)]


class HeadConfig(Settings):
    """What is read of a configuration; ``is_causal`` None: only the layers with a sliding window are."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    max_position_embeddings: Count
    rms_norm_eps: float = 1e-6
    vocab_size: Count | None = None
    num_target_layers: Count | None = None
    hidden_act: Literal["silu"] = "silu"
    layer_types: list[Attention] | None = None
    sliding_window: Count | None = None
    use_sliding_window: bool = False
    is_causal: bool | None = None
    block_size: Annotated[int, Field(ge=2)]
    mask_token_id: Index
    target_layer_ids: Annotated[list[Index], Field(min_length=1)]
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None

    def seen(self, layer: int) -> tuple[int | None, bool]:
        """The sliding window of a layer, None where it has none, and whether its attention is causal."""
        sliding = bool(self.layer_types) and self.layer_types[layer] == "sliding_attention"  # type: ignore[index]
        window = self.sliding_window if sliding and self.use_sliding_window else None
        return window, sliding if self.is_causal is None else self.is_causal


def check_files(head: str | Path, target: ModelSizes | None) -> None:
    """Raise ``UserError`` if the folder ``head`` is no head, or none for a ``target`` of these sizes. Reads headers."""
    folder = Path(head)
    path = find(folder, FILES, WHAT)
    config = head_config(folder)
    check_tensors(path, config, read_shapes(path, WHAT))
    if target is not None:
        check_fit(folder, config, target)


def head_config(folder: Path) -> HeadConfig:
    """``config.json`` of a head. Raises ``UserError`` naming the key that is wrong."""
    path, config = folder / "config.json", read_config(folder, WHAT)
    kinds = config.get("architectures") or [AUTHORS]
    if not isinstance(kinds, list) or kinds[0] not in (AUTHORS, ASSISTANT):
        reason = f"architectures is {kinds!r:.60}, computed here are DFlash heads of the first kind, {AUTHORS}"
        raise UserError(f"{path}: {reason}", key="head")
    nested = config.get("dflash_config") or {}
    if not isinstance(nested, Mapping):
        raise UserError(f"{WHAT} {path}: dflash_config must be a mapping, not {nested!r:.40}", key="head")
    flags, turned = {**config, **nested}, rotary(config)
    for name, neutral in NEUTRAL.items():
        if (value := flags.pop(name, None) or turned.get(name) or neutral) != neutral:
            raise UserError(f"{path}: {name} is {value!r:.40}: no such {WHAT}", key="head")
    if (rope := turned["rope_type"]) not in ROTATIONS:
        raise UserError(f"{path}: rope_type is {rope!r:.40}: no such {WHAT} is computed here", key="head")
    known = {name: value for name, value in flags.items() if name in HeadConfig.model_fields or name in nested}
    if assistant := kinds[0] == ASSISTANT:
        known |= {"is_causal": False, "use_sliding_window": True}
    try:
        found = validated(HeadConfig, known, f"key of {WHAT}s")
    except UserError as error:
        raise UserError(f"{WHAT} {path}: {error}", key="head") from error
    _check_sizes(path, found)
    if assistant and found.sliding_window is not None:
        # transformers' windows of both sides have the distance itself in them.
        return found.model_copy(update={"sliding_window": found.sliding_window + 1})
    return found


def _check_sizes(path: Path, config: HeadConfig) -> None:
    types, window, reason = config.layer_types or [], config.max_position_embeddings, ""
    if config.block_size > window:
        reason = f"block_size is {config.block_size}, more than max_position_embeddings, {window}"
    elif config.num_attention_heads % config.num_key_value_heads or config.head_dim % 2:
        reason = "num_attention_heads must be a multiple of num_key_value_heads, and head_dim even"
    elif types and len(types) != config.num_hidden_layers:
        reason = f"layer_types has {len(types)} entries, for {config.num_hidden_layers} layers"
    elif config.use_sliding_window and "sliding_attention" in types and config.sliding_window is None:
        reason = "sliding_window is missing, and layer_types names sliding_attention"
    if reason:
        raise UserError(f"{WHAT} {path}: {reason}", key="head")


def renamed(name: str) -> str:
    return next((own + name[len(theirs) :] for theirs, own in RENAMED.items() if name.startswith(theirs)), name)


def check_tensors(path: Path, config: HeadConfig, shapes: Shapes) -> None:
    """Raise ``UserError`` that names the tensor which is missing, unknown or of the wrong shape."""
    h, width = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    layer: Shapes = {
        "input_layernorm": (h,),
        "post_attention_layernorm": (h,),
        **{f"self_attn.{name}_norm": (width,) for name in "qk"},
        **{f"self_attn.{name}_proj": (rows, h) for name, rows in zip("qkv", (queries, keys, keys), strict=True)},
        "self_attn.o_proj": (h, queries),
        **{f"mlp.{name}_proj": (config.intermediate_size, h) for name in ("gate", "up")},
        "mlp.down_proj": (h, config.intermediate_size),
    }
    # However many layers config.json asks for: beyond as many as there are tensors, one is missing for certain.
    layers = min(config.num_hidden_layers, len(shapes) + 1)
    required = {f"layers.{index}.{name}.weight": shape for index in range(layers) for name, shape in layer.items()}
    required |= {"fc.weight": (h, len(config.target_layer_ids) * h), "hidden_norm.weight": (h,), "norm.weight": (h,)}
    found = {renamed(name): shape for name, shape in shapes.items()}
    check_shapes(path, found, required, {}, kind=f"a {WHAT} of {layers} layers", source=f"config.json of this {WHAT}")


def check_fit(folder: Path, config: HeadConfig, target: ModelSizes) -> None:
    advice, reason = "use the head that was trained for this target", ""
    sizes = (
        ("hidden size", config.hidden_size, target.hidden),
        ("vocabulary", config.vocab_size, target.vocabulary),
        ("number of target layers", config.num_target_layers, target.layers),
    )
    for what, own, others in sizes:
        if own not in (None, others):
            padded = PADDED if what == "vocabulary" else ""
            reason = f"is for a {what} of {own}, the target has {others}: {advice}{padded}"
    limits = (
        ("target_layer_ids", max(config.target_layer_ids), target.layers - 1, "last layer"),
        ("mask_token_id", config.mask_token_id, target.vocabulary - 1, "last token"),
        ("block_size", config.block_size, target.window, "window"),
    )
    for key, own, most, what in limits:
        if most is not None and own > most and not reason:
            reason = f"has a {key} of {own}, and the target's {what} is {most}: {advice}"
    if reason:
        raise UserError(f"the {WHAT} in {folder} {reason}", key="head")
