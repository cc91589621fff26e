"""Method, sampling parameters, prompts and output of ``specdec decode``, with a local model or a remote verifier."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ianvs_specdec import drafters
from ianvs_specdec.benchmarks.files import read_json_lines
from ianvs_specdec.commands.hyperparameters import read_hyperparameters, template_sampling
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import validated
from ianvs_specdec.common.storage.atomic import replacing
from ianvs_specdec.common.types import Sampling

if TYPE_CHECKING:
    from ianvs_specdec.engine import Decoded, TokenTree


def method_of(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Name and options of the drafting method."""
    method = "own" if options.drafter else drafters.resolve(options.method)
    known = drafters.method_of(method).options.names()
    settings = dict(read_hyperparameters(None, options.set, "--set").values)
    for key in settings:
        if key not in known and not options.drafter:
            raise unknown(f"option of {method} in --set", key, known)
    if options.drafter:
        own = {key: settings.pop(key) for key in list(settings) if key not in ("length", "acceptance")}
        settings |= {"drafter": options.drafter, "drafter_options": own}
    for key, folder, what in (("head", options.head, "head"), ("draft", options.draft, "model")):
        if folder is not None:
            if key not in known:
                raise UserError(f"--{key}: method {method} has no draft {what}")
            settings[key] = str(folder)
    return method, settings


def sampling_of(options: argparse.Namespace) -> Sampling:
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "seed")
    given = {name: getattr(options, name) for name in names}
    try:
        return validated(Sampling, {**vars(template_sampling(options)), **given, "max_tokens": options.max_new_tokens})
    except UserError as error:
        raise UserError(str(error).replace("max_tokens", "--max-new-tokens")) from error


@dataclass
class PromptLine:
    """A line of the prompt file; ``where``: its file and line."""

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
    """The prompts of the file. Raises UserError, also if the output cannot be written."""
    prompts = list(_read(options.prompts))
    if options.chat and any(isinstance(prompt.content, list) for prompt in prompts):
        raise UserError(f"--chat needs text prompts, but {options.prompts} holds token ids")
    if not options.out.parent.is_dir():
        raise UserError(f"--out {options.out}: the folder {options.out.parent} does not exist")
    if not prompts:
        raise UserError(f"--prompts {options.prompts} is empty")
    return prompts


def _read(path: Path) -> Iterator[PromptLine]:
    for number, row in read_json_lines(path):
        where = f"{path}:{number}"
        content = row.get("prompt")
        if not content or not _is_ids_or_text(content):
            raise UserError(f'{where}: expected {{"prompt": [token ids] or "text"}}, with at least one token')
        prediction, task = row.get("prediction", []), row.get("task", "")
        if not (_is_ids_or_text(prediction) and isinstance(task, str)):
            raise UserError(f'{where}: "prediction" must be token ids or a text, "task" a text')
        yield PromptLine(content, where, prediction, task)


def _is_ids_or_text(content: Any) -> bool:
    is_ids = isinstance(content, list) and all(type(token) is int and token >= 0 for token in content)
    return is_ids or isinstance(content, str)


def tokenizer_of(folder: Path | None) -> Any:
    """The tokenizer of a model; None if it has none, which is enough for prompts of token ids."""
    from transformers import AutoTokenizer

    from ianvs_specdec.models.json_files import without_bom

    if folder is None:
        return None
    try:
        return AutoTokenizer.from_pretrained(without_bom(folder), local_files_only=True, trust_remote_code=False)
    except Exception:  # missing and damaged files raise anything
        return None


def tokenize(
    options: argparse.Namespace, prompts: list[PromptLine], vocabulary: int, window: int | None, tokenizer: Any
) -> list[TokenizedPrompt]:
    """The prompts as token ids. Raises UserError for ids from ``vocabulary`` on and prompts that fill ``window``."""
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
        return plain(render(tokenizer, [{"role": "user", "content": text}], template_sampling(options)))

    tokenized = []
    for prompt in prompts:
        ids = ids_of(prompt.content, chat if options.chat else lambda text: tokenizer(text).input_ids)
        prediction = ids_of(prompt.prediction, plain)
        if not ids:
            raise UserError(f"{prompt.where}: the tokenizer makes no token of this prompt")
        if (largest := max([*ids, *prediction])) >= vocabulary:
            raise UserError(f"{prompt.where}: token id {largest}, but the model's vocabulary ends at {vocabulary - 1}")
        if window is not None and len(ids) >= window:
            raise UserError(f"{prompt.where}: {len(ids)} tokens leave no room in a context window of {window}")
        tokenized.append(TokenizedPrompt(ids, prediction, prompt.task))
    return tokenized


def row_of(
    prompt_ids: list[int], decoded: Decoded, trees: list[TokenTree] | None, tokenizer: Any, task: str
) -> dict[str, Any]:
    """A line of the output file."""
    steps = [msgspec.structs.asdict(step) for step in decoded.trace.steps]
    for step, tree in zip(steps, trees or (), strict=False):
        step.update(tree=tree.tokens, depth=tree.depths, **(tree.notes or {}))
    return {
        "prompt": prompt_ids,
        "output": [*prompt_ids, *decoded.token_ids],
        "text": None if tokenizer is None else tokenizer.decode(decoded.token_ids, skip_special_tokens=True),
        "steps": steps,
        "ttft": decoded.trace.ttft,
        "latency": decoded.trace.latency,
        "finish_reason": decoded.finish_reason,
        "near_ties": [list(tie) for tie in decoded.trace.near_ties],
        **({"task": task} if task else {}),
    }


def write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def print_summary(results: Sequence[Decoded]) -> None:
    tokens = sum(len(result.token_ids) for result in results)
    seconds = sum(result.trace.latency or 0.0 for result in results)
    steps = [step for result in results for step in result.trace.steps]
    tau = f"{sum(step.emitted for step in steps) / len(steps):.3f}" if steps else "-"
    rate = f"{tokens / seconds:.1f}" if seconds else "-"
    print(f"{len(results)} prompts, {tokens} tokens, tau {tau}, {rate} token/s", file=sys.stderr)
