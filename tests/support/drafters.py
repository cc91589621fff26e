"""All variants of every method, with heads, datastores and draft models created for a given model."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field

import torch

from ianvs_specdec import drafters, lengths
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "decoding.md"
"""The page with an example of a custom drafter."""

CASES = {
    "autoregressive": ("autoregressive", {}),
    "prompt_lookup": ("prompt_lookup", {}),
    "predicted_output": ("predicted_output", {}),
    "lookahead": ("lookahead", {"level": 4, "window": 5, "guess": 5, "start": "prompt"}),
    "lookahead-official": ("lookahead", {"level": 5, "window": 7, "guess": 7, "start": "official"}),
    "rest": ("rest", {"datastore": "datastore"}),
    "suffix": ("suffix", {}),
    "suffix-datastore": ("suffix", {"datastore": "datastore"}),
    "suffix-head": ("suffix", {"datastore": "datastore", "head": "eagle"}),
    "recycling": ("recycling", {}),
    "draft_model": ("draft_model", {"draft": "draft"}),
    "draft_model-tree": ("draft_model", {"draft": "draft", "branches": 3, "length": "fixed:12"}),
    "medusa": ("medusa", {"head": "medusa"}),
    "medusa-static": ("medusa", {"head": "medusa", "tree": "static"}),
    "medusa-chain": ("medusa", {"head": "medusa", "tree": "chain"}),
    "eagle": ("eagle", {"head": "eagle"}),
    "eagle-static": ("eagle", {"head": "eagle", "tree": "static"}),
    "eagle-chain": ("eagle", {"head": "eagle", "tree": "chain"}),
    "eagle3": ("eagle", {"head": "eagle3"}),
    "eagle3-chain": ("eagle", {"head": "eagle3", "tree": "chain"}),
    "dflash": ("dflash", {"head": "dflash"}),
    "own": ("own", {"drafter": "bigrams", "drafter_options": {"longest": 4}}),
}
"""Label -> method and options. Files and folders are named as in ``Workshop``."""

DEEP = {"eagle3", "eagle3-chain"}
"""Cases for targets of at least seven layers."""

DRAWING = {"draft_model", "draft_model-tree", "eagle-static", "eagle-chain", "eagle3-chain", "dflash"}
"""Cases whose drafts are sampled and have a distribution."""


@dataclass
class Workshop:
    """Creates the files of methods for ``model`` in ``folder``. ``ready``: existing ones. ``texts``: token sequences
    that the model would generate, for datastores and predictions."""

    model: object
    folder: object
    texts: list = field(default_factory=list)
    ready: dict = field(default_factory=dict)

    def create(self, label):
        """Drafter and length of one of ``CASES``."""
        method, options = CASES[label]
        made = {"datastore": self.datastore, "eagle": self.eagle, "eagle3": self.eagle3, "medusa": self.medusa}
        made["dflash"] = self.dflash
        made |= {"draft": self.draft, "bigrams": self.bigrams}
        settings = {}
        for key, value in options.items():
            if key in ("datastore", "head", "draft", "drafter"):
                if value not in self.ready:
                    self.ready[value] = made[value](self.folder / value)
                value = str(self.ready[value])
            settings[key] = value
        length = settings.get("length", drafters.default_length(method))
        return drafters.create(method, settings), lengths.create(length)

    def datastore(self, path):
        from ianvs_specdec.drafters.datastore import Datastore

        Datastore.build(self.texts, self.vocabulary).save(path)
        return path

    def bigrams(self, path):
        return shown_drafter(path.with_suffix(".py"))

    def draft(self, folder):
        """The model with noise on its weights."""
        noisy(self.model, 0.1).save_pretrained(folder)
        return folder

    def medusa(self, folder, heads=3):
        h, random = self.hidden, Random()
        tensors = {}
        for head in range(heads):
            tensors[f"{head}.0.linear.weight"] = random(h, h)
            tensors[f"{head}.0.linear.bias"] = random(h)
            tensors[f"{head}.1.weight"] = random(self.vocabulary, h)
        return saved(folder, "medusa_lm_head.pt", tensors, {"medusa_num_heads": heads, "medusa_num_layers": 1})

    def eagle(self, folder):
        h, random = self.hidden, Random()
        tensors = {
            "fc.weight": random(h, 2 * h),
            "fc.bias": random(h),
            "embed_tokens.weight": random(self.vocabulary, h),
            **random.layer("layers.0.", h, h),
        }
        return saved(folder, "pytorch_model.bin", tensors, self.head_config)

    def eagle3(self, folder):
        """With every other token of the target in the draft vocabulary."""
        h, random, draft = self.hidden, Random(), (self.vocabulary + 1) // 2
        tensors = {
            "fc.weight": random(h, 3 * h),
            "norm.weight": torch.ones(h),
            "lm_head.weight": random(draft, h),
            "d2t": torch.arange(draft),
            "t2d": torch.arange(self.vocabulary) % 2 == 0,
            "midlayer.hidden_norm.weight": torch.ones(h),
            "midlayer.input_layernorm.weight": torch.ones(h),
            **random.layer("midlayer.", h, 2 * h),
        }
        return saved(folder, "pytorch_model.bin", tensors, {**self.head_config, "draft_vocab_size": draft})

    def dflash(self, folder, layers=2, **changes):
        """Two layers over the outputs of the target's first and penultimate layers, in blocks of five."""
        h, random = self.hidden, Random()
        tensors = {"fc.weight": random(h, 2 * h), "hidden_norm.weight": torch.ones(h), "norm.weight": torch.ones(h)}
        for layer in range(layers):
            norms = {"input_layernorm": h, "self_attn.q_norm": h // 4, "self_attn.k_norm": h // 4}
            tensors |= {f"layers.{layer}.{name}.weight": torch.ones(size) for name, size in norms.items()}
            tensors |= random.layer(f"layers.{layer}.", h, h)
        inner = max(0, self.model.config.num_hidden_layers - 2)
        read = {"mask_token_id": self.vocabulary - 1, "target_layer_ids": [0, inner]}
        sizes = {"num_hidden_layers": layers, "num_key_value_heads": 4, "head_dim": h // 4, "block_size": 5}
        config = {**self.head_config, **sizes, "architectures": ["DFlashDraftModel"], "dflash_config": read, **changes}
        return saved(folder, "pytorch_model.bin", tensors, config)

    @property
    def hidden(self):
        return self.model.config.hidden_size

    @property
    def vocabulary(self):
        return self.model.get_input_embeddings().weight.shape[0]

    @property
    def head_config(self):
        sizes = {"hidden_size": self.hidden, "intermediate_size": 2 * self.hidden, "vocab_size": self.vocabulary}
        return {**sizes, "num_attention_heads": 4, "num_hidden_layers": 1, "max_position_embeddings": 4096}


def shown_drafter(file):
    """Save the class on ``PAGE`` to ``file``; returns "file:Class"."""
    code = shown_code()[0]
    file.write_text(code, encoding="utf-8")
    return f"{file}:{re.findall('class ([A-Za-z]+)', code)[0]}"


def shown_code():
    """The Python code about custom drafters on ``PAGE``, the class first."""
    shown = PAGE.read_text(encoding="utf-8").partition("## A drafter of your own")[2]
    return re.findall(r"```python\n(.*?)```", shown, flags=re.DOTALL)


def noisy(model, amount):
    """A copy of ``model`` with noise on its weights, of ``amount`` times their standard deviation."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.dim() > 1:
                weight.add_(amount * weight.std() * torch.randn(weight.shape, generator=generator))
    return draft


class Random:
    """Reproducible random tensors."""

    def __init__(self):
        self._generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape):
        return 0.3 * torch.randn(*shape, generator=self._generator)

    def layer(self, prefix, h, inputs):
        """One Llama layer of width ``h`` whose attention reads ``inputs`` numbers."""
        attention = {f"self_attn.{name}_proj.weight": self(h, inputs) for name in "qkv"}
        mlp = {f"mlp.{name}_proj.weight": self(2 * h, h) for name in ("gate", "up")}
        rest = {"self_attn.o_proj.weight": self(h, h), "mlp.down_proj.weight": self(h, 2 * h)}
        norm = {"post_attention_layernorm.weight": torch.ones(h)}
        return {prefix + name: tensor for name, tensor in {**attention, **mlp, **rest, **norm}.items()}


def saved(folder, name, tensors, config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / name)
    return folder
