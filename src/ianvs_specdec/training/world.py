"""The training of the embedded benchmark's tokenizer and its two models, from the command's options."""

from __future__ import annotations

import argparse
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from ianvs_specdec.benchmarks.world import dialogues, facts, questions
from ianvs_specdec.checkpoints.loading import CAUSAL, load
from ianvs_specdec.errors import UserError
from ianvs_specdec.training import lm
from ianvs_specdec.training.corpus import ASSISTANT, END, USER, train_tokenizer
from ianvs_specdec.training.course import replaced, tell

VOCABULARY = 1024
SHAPE = {"hidden": 256, "heads": 4, "kv_heads": 2}
RECIPES = {
    "cloud": lm.ModelRecipe(**SHAPE, layers=12, intermediate=640, minutes=52, start_layers=4, grow_at=0.7, drill=0.3),
    "edge": lm.ModelRecipe(**SHAPE, layers=3, intermediate=192, minutes=0.5, drill=0.0, learning_rate=2e-3),
}
OPEN_ENDED = "open-ended"


def run(options: argparse.Namespace, sizes: tuple[str, ...]) -> None:
    """Train the models of these sizes, one after the other."""
    torch.set_num_threads(options.threads)
    work: Path = options.work or options.out / ".training"
    folder = work / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(folder, vocabulary=VOCABULARY, seed=options.seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)

    def evaluate(model: LlamaForCausalLM) -> str:
        return _by_subject(model, tokenizer, options.device, options.seed)

    for size in sizes:
        recipe = replace(RECIPES[size], seed=options.seed, minutes=options.minutes or RECIPES[size].minutes)

        def report(line: str, size: str = size) -> None:
            tell(f"{size}: {line}")

        start = None if size == "cloud" else lm.prune(_cloud(options.out / "cloud"), recipe, tokenizer)
        model: Any = lm.train(
            recipe, tokenizer, work / size, device=options.device, start=start, evaluate=evaluate, report=report
        )
        report(evaluate(model))
        if (spent := options.minutes) is not None and spent < RECIPES[size].minutes:
            report(
                f"trained for {spent:g} of the recipe's {RECIPES[size].minutes:g} minutes: it knows less than it could"
            )
        with replaced(options.out / size) as out:
            model.to(torch.bfloat16).save_pretrained(out)
            shutil.copytree(folder, out, dirs_exist_ok=True)


def _cloud(folder: Path) -> LlamaForCausalLM:
    if not (folder / "config.json").is_file():
        raise UserError(f"the edge model is cut out of the cloud model, and {folder} holds none: train it first")
    model: LlamaForCausalLM = load(CAUSAL, folder, what=f"the cloud model {folder}", dtype="float32")
    return model


def _by_subject(model: LlamaForCausalLM, tokenizer: Any, device: str, seed: int) -> str:
    """Share of word-for-word right answers on fresh training-style questions in unseen wordings, by subject."""
    world, name = facts.build(), f"development/{seed}"
    asked = [(item.subject, item.prompt, item.completion) for item in questions.test_items(world, 16, name)]
    talks = dialogues.test_dialogues(world, 4, name)
    asked += [(OPEN_ENDED, talk.turns[0], talk.answers[0]) for talk in talks]
    pairs = [(f"{USER}{turn}{END}{ASSISTANT}", answer + END) for _, turn, answer in asked]
    right: dict[str, list[bool]] = defaultdict(list)
    for (group, _, _), exact in zip(asked, lm.exact_answers(model, tokenizer, pairs, device), strict=True):
        right[group].append(exact)
    knowledge = [exact for group, found in right.items() if group != OPEN_ENDED for exact in found]
    shares = " ".join(f"{group} {sum(found) / len(found):.2f}" for group, found in right.items())
    return f"exact {sum(knowledge) / len(knowledge):.2f} {shares}"
