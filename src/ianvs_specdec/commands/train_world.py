"""``specdec train world``: reproduce the tokenizer and the two models of the embedded benchmark."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.errors import UserError

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

VOCABULARY = 1024
SIZES = ("cloud", "edge")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, required=True, help="folder for the models (OUT/edge, OUT/cloud)")
    parser.add_argument(
        "--work", type=Path, help="folder for checkpoints (default OUT/.training); a second run resumes from it"
    )
    parser.add_argument("--only", choices=SIZES, help="train one of the two; the edge model is cut out of OUT/cloud")
    parser.add_argument(
        "--minutes", type=float, help="time budget for each model (default: the recipe's, see docs/benchmarks.md)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)


def run(options: argparse.Namespace) -> int:
    import torch
    from transformers import AutoTokenizer

    from ianvs_specdec.training import lm
    from ianvs_specdec.training.corpus import train_tokenizer

    recipes = {
        "cloud": lm.ModelRecipe(
            hidden=256,
            layers=12,
            heads=4,
            kv_heads=2,
            intermediate=640,
            minutes=52,
            start_layers=4,
            grow_at=0.7,
            drill=0.3,
        ),
        "edge": lm.ModelRecipe(
            hidden=256, layers=3, heads=4, kv_heads=2, intermediate=192, minutes=0.5, drill=0.0, learning_rate=2e-3
        ),
    }
    if options.minutes is not None and options.minutes <= 0:
        raise UserError("--minutes must be more than 0")
    torch.set_num_threads(options.threads)
    work: Path = options.work or options.out / ".training"
    tokenizer_folder = work / "tokenizer"
    if not (tokenizer_folder / "tokenizer.json").exists():
        train_tokenizer(tokenizer_folder, vocabulary=VOCABULARY, seed=options.seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer_folder)
    for size in [options.only] if options.only else SIZES:
        recipe = replace(recipes[size], seed=options.seed, minutes=options.minutes or recipes[size].minutes)

        def evaluate(model: LlamaForCausalLM) -> str:
            return _by_subject(model, tokenizer, options.device, options.seed)

        def report(line: str, size: str = size) -> None:
            print(f"{time.strftime('%H:%M:%S')} {size}: {line}", flush=True)

        start = None if size == "cloud" else lm.prune(_cloud(options.out / "cloud"), recipe, tokenizer)
        model = lm.train(
            recipe, tokenizer, work / size, device=options.device, start=start, evaluate=evaluate, report=report
        )
        report(evaluate(model))
        _export(model, tokenizer_folder, options.out / size)
    return 0


def _cloud(folder: Path) -> LlamaForCausalLM:
    from transformers import LlamaForCausalLM

    if not (folder / "config.json").is_file():
        raise UserError(f"the edge model is cut out of the cloud model, and {folder} holds none: train it first")
    return LlamaForCausalLM.from_pretrained(folder, dtype="float32")


def _by_subject(model: LlamaForCausalLM, tokenizer: Any, device: str, seed: int) -> str:
    """Share of word-for-word right answers on fresh training-style questions in unseen wordings, by subject."""
    from ianvs_specdec.benchmarks.world import dialogues, facts, questions
    from ianvs_specdec.training import lm
    from ianvs_specdec.training.corpus import ASSISTANT, END, USER

    world = facts.build()
    pairs: list[tuple[str, str]] = []
    groups: list[str] = []
    for item in questions.test_items(world, 16, f"development/{seed}"):
        pairs.append((f"{USER}{item.prompt}{END}{ASSISTANT}", item.completion + END))
        groups.append(item.subject)
    for dialogue in dialogues.test_dialogues(world, 4, f"development/{seed}"):
        pairs.append((f"{USER}{dialogue.turns[0]}{END}{ASSISTANT}", dialogue.answers[0] + END))
        groups.append("open-ended")
    counts: dict[str, list[bool]] = defaultdict(list)
    for group, right in zip(groups, lm.exact_answers(model, tokenizer, pairs, device), strict=True):
        counts[group].append(right)
    knowledge = [r for g, rs in counts.items() if g != "open-ended" for r in rs]
    return f"exact {sum(knowledge) / len(knowledge):.2f} " + " ".join(
        f"{g} {sum(r) / len(r):.2f}" for g, r in counts.items()
    )


def _export(model: Any, tokenizer_folder: Path, out: Path) -> None:
    """The model in bf16 with its tokenizer as a Hugging Face folder, complete or not at all."""
    import torch

    temporary = out.with_name(f".{out.name}.{random.randrange(1 << 32):08x}")
    model.to(torch.bfloat16).save_pretrained(temporary)
    for file in tokenizer_folder.iterdir():
        shutil.copy2(file, temporary / file.name)
    if out.exists():
        shutil.rmtree(out)
    os.replace(temporary, out)
