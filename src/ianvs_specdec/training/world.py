"""The training of the embedded benchmark's tokenizer and its two models, from the command's options."""

from __future__ import annotations

import argparse
import shutil
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from ianvs_specdec.benchmarks.world import dialogues, facts, questions
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage.folder_lock import lock_folder
from ianvs_specdec.common.storage.purpose import check_purpose
from ianvs_specdec.models.loading import CAUSAL, load
from ianvs_specdec.records.identity import FileDigests, digest
from ianvs_specdec.records.run import current_run
from ianvs_specdec.training import lm
from ianvs_specdec.training.corpus import ASSISTANT, END, USER, train_tokenizer
from ianvs_specdec.training.course import replaced, tell

VOCABULARY = 1024
RECIPES = {
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
    # Narrow and deep: a draft head, which is one layer, costs little beside it. Small batches bring it further in the
    # same time, and attention with few wide heads is the cheapest to train on a CPU.
    "edge": lm.ModelRecipe(
        hidden=128,
        layers=8,
        heads=2,
        kv_heads=1,
        intermediate=384,
        steps=5_000,
        # With fewer drills it finds the letter of an option late, and at a step that hangs on the seed.
        drill=0.24,
        decay=0.4,
        rows=8,
        # What it knows is to be a part of what the cloud knows, and the same part for every seed.
        tail=5.0,
        teacher_at=0.6,
    ),
}
OPEN_ENDED = "open-ended"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def run(options: argparse.Namespace, sizes: tuple[str, ...]) -> None:
    torch.set_num_threads(options.threads)
    for size in sizes:
        _train(size, options)


def _train(size: str, options: argparse.Namespace) -> None:
    work: Path = options.work or options.out / ".training"
    recipe = replace(RECIPES[size], seed=options.seed)
    if options.minutes is not None:
        recipe = replace(recipe, minutes=options.minutes, steps=None)
    teacher, folder = None, work / "tokenizer"
    if size == "edge":
        folder = options.cloud or options.out / "cloud"
        teacher = _teacher(folder, options.device)
    elif not (folder / "tokenizer.json").exists():
        train_tokenizer(folder, vocabulary=VOCABULARY, seed=options.seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)

    def report(line: str) -> None:
        tell(f"{size}: {line}")

    def evaluate(model: LlamaForCausalLM) -> str:
        return _by_subject(model, tokenizer, options.device, options.seed)

    purpose = {name: value for name, value in asdict(recipe).items() if name not in ("minutes", "steps")}
    if teacher:
        digests = FileDigests(work / "model_files.json")
        purpose["cloud"] = digest(digests.folder(folder))
    (work / size).mkdir(parents=True, exist_ok=True)
    held = lock_folder(work / size, current_run()[0])
    check_purpose(work / size, purpose, what="checkpoints of another training", key="work")
    model: Any = lm.train(
        recipe, tokenizer, work / size, device=options.device, teacher=teacher, evaluate=evaluate, report=report
    )
    report(evaluate(model))
    if (whole := RECIPES[size].minutes) > (spent := options.minutes or whole):
        report(f"trained for {spent:g} of the recipe's {whole:g} minutes: it knows less than it could")
    with replaced(options.out / size) as out:
        model.to(torch.bfloat16).save_pretrained(out)
        for file in TOKENIZER_FILES:
            shutil.copy(folder / file, out)
    del held


def _teacher(folder: Path, device: str) -> Any:
    if not (folder / "config.json").is_file():
        raise UserError(f"the edge model learns from the cloud model, and {folder} holds none: train it first")
    model: Any = load(CAUSAL, folder, what=f"the cloud model {folder}", dtype="bfloat16")
    model.to(device)
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
