"""The prompts of ``specdec decode``: read, and made token ids."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ianvs_specdec.benchmarks.files import read_json_lines
from ianvs_specdec.commands.hyperparameters import told
from ianvs_specdec.common.errors import UserError


@dataclass
class PromptLine:
    content: list[int] | str
    where: str
    prediction: list[int] | str
    task: str


@dataclass
class TokenizedPrompt:
    prompt: list[int]
    prediction: list[int]
    task: str


def read_prompts(options: argparse.Namespace) -> list[PromptLine]:
    """The prompts of the file, and whether the output can be written. Raises UserError."""
    prompts = list(_read(options.prompts))
    if options.chat and any(isinstance(prompt.content, list) for prompt in prompts):
        raise UserError(f"--chat needs text prompts, but {options.prompts} holds token ids")
    if not options.out.parent.is_dir():
        raise UserError(f"--out {options.out}: the folder {options.out.parent} does not exist")
    return prompts


def _read(path: Path) -> Iterator[PromptLine]:
    count = 0
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        content = row.get("prompt")
        if not content or not _is_ids_or_text(content):
            raise UserError(f'{where}: expected {{"prompt": [token ids] or "text"}}, with at least one token')
        prediction, task = row.get("prediction", []), row.get("task", "")
        if not (_is_ids_or_text(prediction) and isinstance(task, str)):
            raise UserError(f'{where}: "prediction" must be token ids or a text, "task" a text')
        count += 1
        yield PromptLine(content, where, prediction, task)
    if not count:
        raise UserError(f"--prompts {path} is empty")


def _is_ids_or_text(content: Any) -> bool:
    is_ids = isinstance(content, list) and all(type(token) is int and token >= 0 for token in content)
    return is_ids or isinstance(content, str)


def tokenizer_of(folder: Path | None) -> Any:
    """None where the model has none: prompts of token ids need none."""
    from transformers import AutoTokenizer

    from ianvs_specdec.models.json_files import without_bom

    if folder is None:
        return None
    try:
        return AutoTokenizer.from_pretrained(without_bom(folder), local_files_only=True, trust_remote_code=False)
    except Exception:
        # Missing and damaged files raise whatever their reader has.
        return None


def requests_of(
    options: argparse.Namespace, prompts: list[PromptLine], vocabulary: int, window: int | None, tokenizer: Any
) -> list[TokenizedPrompt]:
    """Token ids below ``vocabulary`` that leave room in ``window``. Raises UserError for others."""
    from ianvs_specdec.models.templates import render

    def ids_of(text: list[int] | str, encode: Callable[[str], list[int]]) -> list[int]:
        if isinstance(text, str) and tokenizer is None:
            place = options.model or options.draft or "--model DIR, which is not given,"
            raise UserError(f"the prompts are text and {place} has no tokenizer that can be read: give token ids")
        return encode(text) if isinstance(text, str) else text

    def plain(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    def chat(text: str) -> list[int]:
        if not tokenizer.chat_template:
            raise UserError(f"--chat: the tokenizer in {options.model or options.draft} has no chat template")
        return plain(render(tokenizer, [{"role": "user", "content": text}], told(options)))

    requests = []
    for prompt in prompts:
        ids = ids_of(prompt.content, chat if options.chat else lambda text: tokenizer(text).input_ids)
        prediction = ids_of(prompt.prediction, plain)
        if not ids:
            raise UserError(f"{prompt.where}: the tokenizer makes no token of this prompt")
        if (largest := max([*ids, *prediction])) >= vocabulary:
            raise UserError(f"{prompt.where}: token id {largest}, but the model's vocabulary ends at {vocabulary - 1}")
        if window is not None and len(ids) >= window:
            raise UserError(f"{prompt.where}: {len(ids)} tokens leave no room in a context window of {window}")
        requests.append(TokenizedPrompt(ids, prediction, prompt.task))
    return requests
