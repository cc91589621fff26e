"""EAGLE drafts straight from the definition: no cache, nothing folded, every hidden state from the whole path."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import TokenTree
from ianvs_specdec.targets.native import library
from tests.support.requests import decoded
from tests.support.tiny import tiny_model

VOCABULARY, HIDDEN = 24, 32
CONFIG = {
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "head_dim": 8,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}


def random_tensors(config, eagle3=False, seed=0):
    """The tensors of a head with this configuration, its norm weights not all one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator) * 0.2

    own_names = eagle3 and "speculators_model_type" not in config
    layer, h, inner = ("midlayer." if own_names else "layers.0."), config["hidden_size"], config["intermediate_size"]
    query = config["num_attention_heads"] * config["head_dim"]
    key = config["num_key_value_heads"] * config["head_dim"]
    inputs = 2 * h if eagle3 else h
    sizes = {"q": query, "k": key, "v": key}
    tensors = {f"{layer}self_attn.{name}_proj.weight": draw(rows, inputs) for name, rows in sizes.items()}
    if config.get("attention_bias"):
        tensors[f"{layer}self_attn.o_proj.bias"] = draw(h)
    if config.get("qkv_bias") or config.get("attention_bias"):
        tensors |= {f"{layer}self_attn.{name}_proj.bias": draw(rows) for name, rows in sizes.items()}
    if config.get("mlp_bias"):
        tensors |= {f"{layer}mlp.{name}_proj.bias": draw(inner) for name in ("gate", "up")}
        tensors[f"{layer}mlp.down_proj.bias"] = draw(h)
    if config.get("model_type") == "qwen3":
        tensors |= {f"{layer}self_attn.{name}_norm.weight": 1 + draw(config["head_dim"]) for name in "qk"}
    tensors |= {
        f"{layer}self_attn.o_proj.weight": draw(h, query),
        f"{layer}mlp.gate_proj.weight": draw(inner, h),
        f"{layer}mlp.up_proj.weight": draw(inner, h),
        f"{layer}mlp.down_proj.weight": draw(h, inner),
        f"{layer}post_attention_layernorm.weight": 1 + draw(h),
    }
    if not eagle3:
        tensors |= {"embed_tokens.weight": draw(config["vocab_size"], h), "fc.weight": draw(h, 2 * h)}
        return tensors | ({"fc.bias": draw(h)} if config.get("bias", True) else {})
    draft = config.get("draft_vocab_size", config["vocab_size"])
    tensors |= {f"{layer}{norm}.weight": 1 + draw(h) for norm in ("input_layernorm", "hidden_norm")}
    states = len(config.get("eagle_aux_hidden_state_layer_ids", "abc"))
    if config.get("norm_before_fc"):
        tensors["input_norm.weight"] = 1 + draw(states * h)
    if config.get("fc_norm"):
        tensors |= {f"fc_norm.{index}.weight": 1 + draw(h) for index in range(states)}
    tensors |= {"fc.weight": draw(h, states * h), "norm.weight": 1 + draw(h), "lm_head.weight": draw(draft, h)}
    if draft < config["vocab_size"]:
        chosen = torch.randperm(config["vocab_size"], generator=generator)[:draft].sort().values
        known = torch.zeros(config["vocab_size"], dtype=torch.bool).index_fill(0, chosen, True)
        tensors |= {"d2t": chosen - torch.arange(draft), "t2d": known}
    return tensors


def save(folder, tensors, config):
    folder.mkdir(exist_ok=True)
    if "speculators_model_type" in config:
        own = {"speculators_model_type", "draft_vocab_size", "eagle_aux_hidden_state_layer_ids", *FLAGS}
        layer = {key: value for key, value in config.items() if key not in own}
        flags = {**dict.fromkeys(FLAGS, False), **{key: config[key] for key in own if key in config}}
        config = {"architectures": ["Eagle3DraftModel"], **flags, "transformer_layer_config": layer}
    if frequent := config.get("frequent"):
        torch.save(frequent, folder / "freq_8.pt")
    (folder / "config.json").write_text(json.dumps(config))
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


FLAGS = ("norm_before_residual", "norm_output", "norm_before_fc", "fc_norm")


class Oracle:
    """What a head says after a text, computed from the model's own hidden states of that text."""

    def __init__(self, model, tensors, config):
        self.model, self.tensors, self.config = model, tensors, config
        self.eagle3 = "norm.weight" in tensors
        self.layer = "midlayer." if "midlayer.mlp.up_proj.weight" in tensors else "layers.0."
        self.rotary = LlamaRotaryEmbedding(LlamaConfig(**config))

    @torch.inference_mode()
    def read(self, tokens):
        """Set the text: all tokens up to the root of the tree, the root included."""
        states = self.model(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states
        if self.eagle3:
            n = self.model.config.num_hidden_layers
            read = self.config.get("eagle_aux_hidden_state_layer_ids", (2, n // 2, n - 3))
            chosen = [states[i][0] for i in read]
            if self.config.get("fc_norm"):
                chosen = [self._norm(state, f"fc_norm.{i}.weight") for i, state in enumerate(chosen)]
            joined = torch.cat(chosen, dim=-1)
            if self.config.get("norm_before_fc"):
                joined = self._norm(joined, "input_norm.weight")
            self.features = joined @ self.tensors["fc.weight"].T
        else:
            self.features = states[-1][0]
        self.text = tokens
        self._hidden = {}

    @torch.inference_mode()
    def log_probabilities(self, path, temperature=1.0):
        """Over the whole vocabulary, of the token after ``path`` below the root."""
        hidden = self.hidden(tuple(path))
        if not self.eagle3:
            logits = self.model.get_output_embeddings()(hidden) / getattr(self.model.config, "logits_scaling", 1)
            if most := getattr(self.model.config, "final_logit_softcapping", None):
                logits = (logits / most).tanh() * most
            if "frequent" in self.config:
                unknown = torch.ones_like(logits, dtype=torch.bool)
                unknown[self.config["frequent"]] = False
                logits = logits.masked_fill(unknown, -math.inf)
        else:
            hidden = hidden if self.config.get("norm_output") else self._norm(hidden, "norm.weight")
            own = hidden @ self.tensors["lm_head.weight"].T
            ids = torch.arange(len(own)) + self.tensors.get("d2t", 0)
            logits = own.new_full((self.config["vocab_size"],), -math.inf)
            logits[ids] = own
        return (logits / temperature).log_softmax(dim=-1)

    def hidden(self, path):
        """The head's output at the last node of ``path``, or at the root for no path."""
        if path not in self._hidden:
            pairs = [*self.text[1:], *path]
            above = [self.hidden(path[:i]) for i in range(len(path))]
            self._hidden[path] = self._forward(torch.tensor(pairs), torch.stack([*self.features, *above]))
        return self._hidden[path]

    def _forward(self, tokens, features):
        table = self.tensors.get("embed_tokens.weight", self.model.get_input_embeddings().weight)
        embedded, t, layer = table[tokens], self.tensors, self.layer
        if self.eagle3:
            x = features
            normed = self._norm(embedded, f"{layer}input_layernorm.weight")
            hidden = self._norm(features, f"{layer}hidden_norm.weight")
            inputs = torch.cat([normed, hidden], dim=-1)
            x = hidden if self.config.get("norm_before_residual") else x
        else:
            x = torch.cat([embedded, features], dim=-1) @ t["fc.weight"].T + t.get("fc.bias", 0)
            inputs = x
        heads = []
        for name in "qkv":
            out = inputs @ t[f"{layer}self_attn.{name}_proj.weight"].T + t.get(f"{layer}self_attn.{name}_proj.bias", 0)
            out = out.view(len(tokens), -1, self.config["head_dim"])
            if self.config.get("model_type") == "qwen3" and name != "v":
                out = self._norm(out, f"{layer}self_attn.{name}_norm.weight")
            heads.append(out.transpose(0, 1)[None])
        cosine, sine = self.rotary(x, torch.arange(len(tokens))[None])
        query, key = apply_rotary_pos_emb(heads[0], heads[1], cosine, sine)
        group = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(group, dim=1), heads[2].repeat_interleave(group, dim=1)
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.config["head_dim"])
        seen = torch.ones(len(tokens), len(tokens)).tril().bool()
        if self.config.get("layer_types") == ["sliding_attention"]:
            seen &= seen.triu(1 - self.config["sliding_window"])
        scores = scores.masked_fill(~seen, -math.inf)
        attended = (scores.softmax(-1) @ value)[0].transpose(0, 1).reshape(len(tokens), -1)
        x = x + attended @ t[f"{layer}self_attn.o_proj.weight"].T + t.get(f"{layer}self_attn.o_proj.bias", 0)
        normed = self._norm(x, f"{layer}post_attention_layernorm.weight")
        gate, up = (self._product(normed, f"{layer}mlp.{name}_proj") for name in ("gate", "up"))
        x = (x + self._product(functional.silu(gate) * up, f"{layer}mlp.down_proj"))[-1]
        return self._norm(x, "norm.weight") if self.config.get("norm_output") else x

    def _product(self, x, module):
        return x @ self.tensors[f"{module}.weight"].T + self.tensors.get(f"{module}.bias", 0)

    def _norm(self, x, name):
        return x * (x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"]).rsqrt() * self.tensors[name]

    def dynamic(self, total_tokens, depth, top_k):
        """Paths of EAGLE-2's tree with their cumulative log-probabilities, in the official order."""
        pool, beam = [], [((), 0.0)]
        for level in range(depth + 1):
            candidates = []
            for path, score in beam:
                best = self.log_probabilities(path).topk(top_k)
                candidates += [
                    ((*path, token), score + value)
                    for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True)
                ]
            pool += candidates
            width = top_k if level else len(candidates)
            beam = sorted(candidates, key=lambda candidate: -candidate[1])[:width]
        chosen = sorted(range(len(pool)), key=lambda i: -pool[i][1])[: total_tokens - 1]
        return [pool[i] for i in sorted(chosen)]

    def ranked(self, ranks):
        """The paths of a static tree of these paths of ranks."""
        found = {(): ()}
        for path in ranks:
            above = found[path[:-1]]
            found[path] = (*above, int(self.log_probabilities(above).topk(path[-1] + 1).indices[-1]))
        return [found[path] for path in ranks]


PROMPT = [5, 9, 14, 3, 22, 9, 14, 3]
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
HEADS = {
    "eagle": (False, {}),
    "eagle-plain": (False, {"bias": False, "num_key_value_heads": 4}),
    "eagle-biased": (False, {"qkv_bias": True, "rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "eagle3": (True, {"draft_vocab_size": 15}),
    "eagle3-whole": (True, {"qkv_bias": True}),
    "eagle-frequent": (False, {"frequent": [3, 22, 9, 14, 7, 1, 0, 19]}),
    "eagle3.1": (True, {"fc_norm": True, "norm_output": True, "mlp_bias": True}),
    "speculators": (
        True,
        {
            "speculators_model_type": "eagle3",
            "model_type": "llama",
            "draft_vocab_size": 15,
            **dict.fromkeys(("norm_before_residual", "norm_before_fc", "norm_output"), True),
            "layer_types": ["sliding_attention"],
            "sliding_window": 3,
        },
    ),
    "speculators-qwen3": (
        True,
        {
            "speculators_model_type": "eagle3",
            "model_type": "qwen3",
            "norm_before_residual": True,
            "fc_norm": True,
            "attention_bias": True,
            "eagle_aux_hidden_state_layer_ids": [4, 1],
        },
    ),
    "eagle3-layers": (True, {"attention_bias": True, "eagle_aux_hidden_state_layer_ids": [5, 0, 6, 2]}),
}


WITHOUT = library.unavailable_reason()
NATIVE = pytest.param("native", marks=pytest.mark.skipif(WITHOUT is not None, reason=WITHOUT or ""))
ENGINES = ["torch", NATIVE]
"""What computes target and head."""


def wide(name="llama", layers=7, **overrides):
    return tiny_model(name, num_hidden_layers=layers, vocab_size=VOCABULARY, initializer_range=0.15, **overrides)


def save_heads(root):
    """Every head of ``HEADS`` in a folder of its name."""
    for label, (eagle3, changes) in HEADS.items():
        config = {**CONFIG, **changes}
        save(root / label, random_tensors(config, eagle3), config)
    return root


def run(target, drafter, prompt=PROMPT, length="full", rule="rejection", eos=(), **sampling):
    """Every verified tree with the text up to its root, and what was decoded."""
    trees: list[TokenTree] = []
    sampling = Sampling(**{"max_tokens": 16, **sampling})
    result = decoded(target, drafter, length, prompt, sampling, eos_ids=eos, trace_trees=trees, rule=rule)
    texts, text = [], [*prompt, result.token_ids[0]]
    for step in result.trace.steps:
        texts.append(list(text))
        text += result.token_ids[len(text) - len(prompt) :][: step.emitted]
    return list(zip(texts, trees, strict=True)), result
