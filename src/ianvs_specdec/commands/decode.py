"""``specdec decode``: decode prompts with one method, write outputs and step traces.

Input, one JSON object per line: ``{"prompt": [token ids] | "text"}``, optionally with ``"prediction"`` (ids or text,
for method predicted_output) and ``"task"`` (a name, for length goodput). Output, one line per prompt: ``{"prompt":
[ids], "output": [prompt + generated ids], "text": what was generated (null without a tokenizer), "steps": [{"drafted",
"accepted", "emitted", "verified"}], "ttft": s, "latency": s, "finish_reason": ..., "near_ties": [[output position,
logit gap]]}``, and the prompt's ``task`` where it has one. The prefill pass is not a step; it
yields the first generated token, ``output[len(prompt)]``; a method whose first step is rooted in the prompt (lookahead
with start=official) has no such pass. With ``--trace`` every step also holds the verified ``tree`` (tokens, root
first), the ``depth`` of each, and what the method notes of itself (lookahead with start=official: ``ctx``, ``window``
and ``guess``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec import drafters, lengths
from ianvs_specdec.errors import UserError, unknown
from ianvs_specdec.llm.quantization import OWN, arguments, own
from ianvs_specdec.storage.replacing import replacing
from ianvs_specdec.types import ENGINES, Sampling

if TYPE_CHECKING:
    from ianvs_specdec.decoding import Decoded, Target, TokenTree

WARM_UP_TOKENS = 8
AT_ONCE = 2
"""Tokens of an output that says nothing: the end, or a line break and the end."""
DTYPES = ("float32", "bfloat16", "float16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, type=Path, metavar="DIR", help="folder of a Hugging Face causal LM")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _methods()
    method = parser.add_mutually_exclusive_group(required=True)
    method.add_argument("--method", metavar="NAME", help="how to draft: one of those below")
    method.add_argument("--drafter", metavar="FILE:CLASS", help="a drafter of your own, path/to/file.py:Class")
    parser.add_argument("--head", type=Path, metavar="DIR", help="folder of the draft head, for methods that have one")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="an option of the method; repeatable")
    parser.add_argument("--prompts", required=True, type=Path, metavar="FILE", help='JSONL: {"prompt": [ids] | "text"}')
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="JSONL to write")
    parser.add_argument("--chat", action="store_true", help="put text prompts through the model's chat template")
    parser.add_argument("--trace", action="store_true", help="write the verified tree of every step")
    parser.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 = greedy (default)")
    parser.add_argument("--top-p", type=float, default=1.0, metavar="P")
    parser.add_argument("--top-k", type=int, default=0, metavar="K", help="0 = off (default)")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="prompt i (from 0) is sampled with seed S + i")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--quantization", choices=("none", *OWN), default="none", help="bits of the weights")
    parser.add_argument("--engine", choices=ENGINES, default="auto", help="what computes (default: the fastest)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1, mps ...")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of torch")


def run(options: argparse.Namespace) -> int:
    # Everything the user may have got wrong is found before the model is loaded.
    method, settings = _settings(options)
    rule, length = str(settings.get("acceptance", "rejection")), settings.get("length", drafters.default_length(method))
    # Two pairs: what the warm-up teaches a drafter or a length must not help it with the first prompt.
    rehearsal, measured = ((drafters.create(method, settings), lengths.create(str(length))) for _ in range(2))
    sampling = _sampling(options)
    prompts = list(_read_prompts(options.prompts))
    if options.chat and any(isinstance(prompt.content, list) for prompt in prompts):
        raise UserError(f"--chat needs text prompts, but {options.prompts} holds token ids")
    if not options.model.is_dir():
        raise UserError(f"--model {options.model} is not a folder: give the folder of a Hugging Face model")
    if not options.out.parent.is_dir():
        raise UserError(f"--out {options.out}: the folder {options.out.parent} does not exist")

    from ianvs_specdec.decoding import decode

    target, eos_ids = _load(options)
    tokenizer = _tokenizer(options.model)
    requests = _requests(options, prompts, target, tokenizer)

    warm_up = replace(sampling, max_tokens=min(WARM_UP_TOKENS, sampling.max_tokens))
    decode(target, *rehearsal, requests[0].prompt, warm_up, eos_ids=eos_ids, rule=rule)

    rows, results = [], []
    for i, request in enumerate(requests):
        trees: list[TokenTree] | None = [] if options.trace else None
        result = decode(
            target,
            *measured,
            request.prompt,
            replace(sampling, seed=sampling.seed + i),
            eos_ids=eos_ids,
            trace_trees=trees,
            rule=rule,
            prediction=request.prediction,
            task=request.task,
        )
        rows.append(_row(request.prompt, result, trees, tokenizer, request.task))
        results.append(result)
    _write(options.out, rows)
    _summarise(results)
    if all(len(result.token_ids) <= AT_ONCE and result.finish_reason == "stop" for result in results):
        unused = not options.chat and getattr(tokenizer, "chat_template", None)
        advice = ": the model has a chat template, which --chat puts the prompts through" if unused else ""
        print(f"specdec decode: warning: every output ended at once{advice}", file=sys.stderr)
    return 0


@dataclass
class _Prompt:
    content: list[int] | str
    where: str
    prediction: list[int] | str
    task: str


@dataclass
class _Request:
    prompt: list[int]
    prediction: list[int]
    task: str


def _methods() -> str:
    """Every method with its options, for the help."""
    lines = ["methods, and the options that --set takes (their defaults in brackets):"]
    for name, method in drafters.METHODS.items():
        # That of --drafter has the options of its class.
        if name != "own":
            lines.append(f"  {name}: {method.about}")
            lines += [f"    {key}: {wanted} ({default})" for key, wanted, default in drafters.describe(name)]
            lines += [f"    length ({method.length})"] if "length" in drafters.options(name) else []
    rules = "fixed:N, full, confidence:P or goodput"
    return "\n".join(
        [*lines, f"  length is one of {rules}; all methods have acceptance: one of {', '.join(drafters.RULES)}"]
    )


def _settings(options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Name and options of the method."""
    method = "own" if options.drafter else drafters.resolve(options.method)
    known = drafters.options(method)
    settings: dict[str, Any] = {}
    for item in options.set:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UserError(f"--set {item}: write it as --set key=value")
        if key not in known and not options.drafter:
            raise unknown(f"option of {method} in --set", key, known)
        settings[key] = _value(value)
    if options.drafter:
        own = {key: settings.pop(key) for key in list(settings) if key not in ("length", "acceptance")}
        settings |= {"drafter": options.drafter, "drafter_options": own}
    if options.head is not None:
        if "head" not in known:
            raise UserError(f"--head: method {method} has no draft head")
        settings["head"] = str(options.head)
    return method, settings


def _value(text: str) -> Any:
    """Numbers and true/false as such, anything else as text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float)) else text


def _sampling(options: argparse.Namespace) -> Sampling:
    try:
        return Sampling(
            max_tokens=options.max_new_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            repetition_penalty=options.repetition_penalty,
            seed=options.seed,
        )
    except ValueError as error:
        raise UserError(str(error).replace("max_tokens", "--max-new-tokens")) from error


def _read_prompts(path: Path) -> Iterator[_Prompt]:
    if not path.is_file():
        raise UserError(f"--prompts {path} is not a file")
    count = 0
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                reason = "the line is blank" if not line.strip() else f"not JSON ({error})"
                raise UserError(f'{where}: {reason}; expected {{"prompt": [token ids] or "text"}}') from error
            content = row.get("prompt") if isinstance(row, dict) else None
            if not content or not _is_ids_or_text(content):
                raise UserError(f'{where}: expected {{"prompt": [token ids] or "text"}}, with at least one token')
            prediction, task = row.get("prediction", []), row.get("task", "")
            if not (_is_ids_or_text(prediction) and isinstance(task, str)):
                raise UserError(f'{where}: "prediction" must be token ids or a text, "task" a text')
            count += 1
            yield _Prompt(content, where, prediction, task)
    if not count:
        raise UserError(f"--prompts {path} is empty")


def _is_ids_or_text(content: Any) -> bool:
    is_ids = isinstance(content, list) and all(type(token) is int and token >= 0 for token in content)
    return is_ids or isinstance(content, str)


def _load(options: argparse.Namespace) -> tuple[Target, list[int]]:
    import torch

    from ianvs_specdec.checkpoints.loading import CAUSAL, check_device, load
    from ianvs_specdec.decoding import target_of
    from ianvs_specdec.llm.base import check_threads

    if options.threads is not None:
        check_threads(options.threads, "--threads")
        torch.set_num_threads(options.threads)
    check_device(options.device)
    arguments(own(options.quantization), options.model, options.device)
    what = f"--model {options.model}"
    model = load(CAUSAL, options.model, what=what, dtype=getattr(torch, options.dtype)).to(options.device)
    eos = model.generation_config.eos_token_id
    target = target_of(model, consume=True, quantization=own(options.quantization), engine=options.engine)
    return target, [eos] if isinstance(eos, int) else list(eos or [])


def _tokenizer(folder: Path) -> Any:
    """None where the model has none: prompts of token ids need none."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception:
        # Missing and damaged files raise whatever their reader has.
        return None


def _requests(options: argparse.Namespace, prompts: list[_Prompt], target: Target, tokenizer: Any) -> list[_Request]:
    from ianvs_specdec.checkpoints.templates import render

    def ids_of(text: list[int] | str, encode: Callable[[str], list[int]]) -> list[int]:
        if isinstance(text, str) and tokenizer is None:
            raise UserError(f"the prompts are text and {options.model} has no tokenizer: give token ids")
        return encode(text) if isinstance(text, str) else text

    def plain(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False).input_ids

    def chat(text: str) -> list[int]:
        if not tokenizer.chat_template:
            raise UserError(f"--chat: the tokenizer in {options.model} has no chat template")
        return plain(render(tokenizer, [{"role": "user", "content": text}]))

    vocabulary = len(target.embedding)
    requests = []
    for prompt in prompts:
        ids = ids_of(prompt.content, chat if options.chat else lambda text: tokenizer(text).input_ids)
        prediction = ids_of(prompt.prediction, plain)
        if not ids:
            raise UserError(f"{prompt.where}: the tokenizer makes no token of this prompt")
        if (largest := max([*ids, *prediction])) >= vocabulary:
            raise UserError(f"{prompt.where}: token id {largest}, but the model's vocabulary ends at {vocabulary - 1}")
        if target.window is not None and len(ids) >= target.window:
            raise UserError(f"{prompt.where}: {len(ids)} tokens leave no room in a context window of {target.window}")
        requests.append(_Request(ids, prediction, prompt.task))
    return requests


def _row(
    prompt_ids: list[int], decoded: Decoded, trees: list[TokenTree] | None, tokenizer: Any, task: str
) -> dict[str, Any]:
    steps = [asdict(step) for step in decoded.trace.steps]
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


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def _summarise(results: list[Decoded]) -> None:
    tokens = sum(len(result.token_ids) for result in results)
    seconds = sum(result.trace.latency or 0.0 for result in results)
    steps = [step for result in results for step in result.trace.steps]
    tau = f"{sum(step.emitted for step in steps) / len(steps):.3f}" if steps else "-"
    rate = f"{tokens / seconds:.1f}" if seconds else "-"
    print(f"{len(results)} prompts, {tokens} tokens, tau {tau}, {rate} token/s", file=sys.stderr)
