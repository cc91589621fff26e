"""Transformers that classify: loaded from Hugging Face format or made from nothing, and the tokens they read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ianvs_specdec.backends.prompts import model_folder
from ianvs_specdec.common.errors import UserError, missing_package_error, optional_import
from ianvs_specdec.models.json_files import without_bom
from ianvs_specdec.models.loading import CLASSIFIER, load, loading_error
from ianvs_specdec.models.templates import render
from ianvs_specdec.models.validation import check_model

HEAD_WIDTH = 32
"""Width of an attention head of an encoder that is made from nothing."""
CHARACTERS_PER_TOKEN = 16
"""No more than this of a long text is looked at, so that its length does not matter."""
RESERVED_POSITIONS = 2
"""Positions begin at 2 in the RoBERTa family."""
MARK = "\x02"

WORD = r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]|\n"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]")
VOCABULARY = 16_384
"""No more words than these, the most frequent ones."""


class QueryTokens:
    """Token ids of a query, at most ``max_length`` of them: of a longer one the beginning and the end.

    A text is framed as the model saw texts in its training: by the special tokens of an encoder, or by the chat
    template of a causal LM, up to where its answer would begin. ``pad``: the id that the model pads with, where it has
    one.
    """

    def __init__(self, tokenizer: Any, max_length: int, pad: int | None = None) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.before, self.after = self._frame()
        # A causal LM is read at its last token that is no padding: a token that ends every text is not for padding.
        candidates = (pad, tokenizer.pad_token_id, tokenizer.eos_token_id, 0, 1)
        self.pad = next(i for i in candidates if i is not None and [i] != self.after[-1:])
        self._room = max_length - len(self.before) - len(self.after)
        if self._room < 2:
            needed = len(self.before) + len(self.after) + 2
            raise UserError(f"max_length must be at least {needed}, not {max_length}", key="max_length")

    def __call__(self, text: str) -> list[int]:
        # A lone surrogate, which JSON can hold, is no text for a tokenizer.
        text = text.encode("utf-8", "replace").decode("utf-8")
        half = CHARACTERS_PER_TOKEN * self._room // 2
        parts = [text] if len(text) <= 2 * half else [text[:half], text[-half:]]
        ids = [i for part in parts for i in self._ids(part)]
        if len(ids) > self._room:
            tail = self._room // 2
            ids = ids[: self._room - tail] + ids[-tail:]
        return [*self.before, *ids, *self.after] or [self.pad]

    def _ids(self, text: str) -> list[int]:
        # The tokenizer's own back end takes a fifth of the time that the call around it takes.
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is not None:
            return list(backend.encode(text, add_special_tokens=False).ids)
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _frame(self) -> tuple[list[int], list[int]]:
        """The ids before and after a text."""
        if self.tokenizer.chat_template:
            chat = [{"role": "user", "content": MARK}]
            before, mark, after = render(self.tokenizer, chat).partition(MARK)
            if mark:
                return self._ids(before), self._ids(after)
        encoded = self.tokenizer("a", return_special_tokens_mask=True)
        ids, special = list(encoded["input_ids"]), list(encoded["special_tokens_mask"])
        start = special.index(0) if 0 in special else len(ids)
        end = len(ids) - special[::-1].index(0) if 0 in special else len(ids)
        return ids[:start], ids[end:]


def pretrained(name: str, *, start: bool = False) -> tuple[Any, Any]:
    """A model with one output and its tokenizer, float32, from a folder or the hub. With ``start``, to begin training
    with, the output may be new.

    Raises UserError. Runs no code of the model's own.
    """
    folder, what = model_folder(name), f"the model {name}"
    check_model(folder, what=what, key="model", causal=False)
    transformers = _transformers()
    try:
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        config.num_labels = 1
        # Left to itself a single output is trained, and named, as a regression.
        config.problem_type = None
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        # Damaged files raise whatever their reader has.
        raise missing_package_error(error) or loading_error(what, error, "model") from error
    model = load(CLASSIFIER, folder, what=what, key="model", start=start, config=config, dtype="float32")
    return model, tokenizer


def word_tokenizer(texts: Iterable[str]) -> Any:
    """A tokenizer whose tokens are the words of ``texts`` that occur twice, and digits and marks one by one.

    In few queries whole names are easier to learn than the pieces that a subword tokenizer makes of them.
    """
    transformers = _transformers()
    import tokenizers

    words = tokenizers.pre_tokenizers.Split(tokenizers.Regex(WORD), behavior="removed", invert=True)
    counts = Counter(word for text in texts for word, _ in words.pre_tokenize_str(text))
    known = [word for word, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if count > 1]
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *known[:VOCABULARY]])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=SPECIAL[1]))
    backend.pre_tokenizer = words
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{SPECIAL[2]} $A", special_tokens=[(SPECIAL[2], 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=SPECIAL[0], unk_token=SPECIAL[1], cls_token=SPECIAL[2]
    )


def tokenizer_of(folder: str) -> Any:
    """The tokenizer in a folder. Raises UserError."""
    if not Path(folder).is_dir():
        raise UserError(f"tokenizer: there is no folder {folder}; name one with a tokenizer", key="tokenizer")
    try:
        return _transformers().AutoTokenizer.from_pretrained(without_bom(Path(folder)), trust_remote_code=False)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"tokenizer: cannot load the one in {folder}: {reason}", key="tokenizer") from error


def untrained(tokenizer: Any, *, layers: int, width: int, positions: int, dropout: float) -> Any:
    """A new ModernBERT (arXiv 2412.13663), every layer with full attention, its output the mean over all tokens. The
    weights are drawn from torch's generator."""
    if width % HEAD_WIDTH:
        raise UserError(f"width must be a multiple of {HEAD_WIDTH}, not {width}", key="width")
    transformers = _transformers()
    names = [f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep")]
    config = transformers.ModernBertConfig(
        **{name: getattr(tokenizer, name) for name in names},
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD_WIDTH,
        intermediate_size=2 * width,
        max_position_embeddings=positions,
        global_attn_every_n_layers=1,
        classifier_pooling="mean",
        num_labels=1,
        embedding_dropout=dropout,
        attention_dropout=dropout,
        mlp_dropout=dropout,
        classifier_dropout=dropout,
    )
    return transformers.AutoModelForSequenceClassification.from_config(config, dtype=torch.float32)


def window(model: Any, max_length: int) -> int:
    """How many tokens are read: ``max_length``, or what the model's positions permit."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return min(max_length, positions - RESERVED_POSITIONS) if positions and positions > 0 else max_length


@optional_import()
def _transformers() -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers
