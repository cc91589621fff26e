"""``specdec train eagle|eagle3|medusa``: train a draft head for a model, from what the model itself says."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.errors import UserError
from ianvs_specdec.identity import FileDigests, digest, write_atomically

if TYPE_CHECKING:
    from ianvs_specdec.training.heads.conversations import Conversation
    from ianvs_specdec.training.heads.loop import HeadRecipe
    from ianvs_specdec.training.heads.models import Head
    from ianvs_specdec.training.heads.pool import Sample
    from ianvs_specdec.training.heads.teacher import Teacher

KINDS = {
    "eagle": "a head of EAGLE and EAGLE-2: one decoder layer over the last hidden state",
    "eagle3": "a head of EAGLE-3: one decoder layer over three hidden states, an output matrix of its own",
    "medusa": "heads of Medusa: each guesses one token, independently",
}
MINUTES = {"eagle": 20.0, "eagle3": 20.0, "medusa": 8.0}
CONVERSATIONS = 12_288


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="folder of the target model")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the head; replaced if there")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help='JSONL: {"text"}, {"turns", "answers"} or {"prompt"} (default: conversations of the embedded world)',
    )
    parser.add_argument(
        "--conversations",
        type=int,
        default=CONVERSATIONS,
        metavar="N",
        help=f"how many of them the model is asked for (default {CONVERSATIONS}, or all of --data if fewer)",
    )
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, metavar="M", help="time for training, without asking the model")
    budget.add_argument("--tokens", type=int, metavar="N", help="train for so many drafted tokens instead")
    parser.add_argument("--drafts", type=int, metavar="K", help="tokens drafted in a row (default 7; medusa: heads, 4)")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="most tokens of one answer")
    parser.add_argument("--length", type=int, default=1024, metavar="N", help="most tokens of one conversation")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="folder for checkpoints (default: beside OUT); a second run resumes"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of torch")


def run(options: argparse.Namespace) -> int:
    _check(options)
    from ianvs_specdec.training.heads import conversations, export

    given = conversations.read(options.data) if options.data else None
    import torch

    from ianvs_specdec.training.heads.loop import train
    from ianvs_specdec.training.heads.teacher import Teacher

    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    teacher = Teacher(options.model, device=options.device, length=options.length, answer=options.max_new_tokens)
    head, config = _head(options, teacher)
    work: Path = options.work or options.out.with_name(f".{options.out.name}.training")
    _claim(work, options)
    layers = teacher.eagle3_layers if head.wants_layers else ()
    asked, held_out = _sources(given, options)
    samples = _pool(teacher, asked, layers, work / "pool", options)
    development = [s for s in teacher.samples(held_out, layers) if len(s.starts)]
    if not samples or not development:
        raise UserError(
            "no answer has the two tokens that a draft needs: give more or longer conversations", key="data"
        )
    recipe = _recipe(options)

    def evaluate(trained: Head) -> str:
        return _tau(trained, development, recipe.steps, options.device)

    steps = train(
        head,
        samples,
        teacher.model.get_output_embeddings().weight.detach(),
        recipe,
        work,
        device=options.device,
        evaluate=evaluate,
        report=_report,
    )
    export.write(head, config, options.model.name, options.out)
    _report(f"{options.out}: {options.what} head after {steps} steps")
    return 0


def _check(options: argparse.Namespace) -> None:
    for name in ("minutes", "tokens", "drafts", "conversations", "max_new_tokens", "length", "threads"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be more than 0")
    if options.length < 3:
        raise UserError("--length must be at least 3")


def _recipe(options: argparse.Namespace) -> HeadRecipe:
    from ianvs_specdec.training.heads.loop import HeadRecipe

    drafts = options.drafts or (4 if options.what == "medusa" else 7)
    return HeadRecipe(options.minutes or MINUTES[options.what], options.tokens, steps=drafts, seed=options.seed)


def _head(options: argparse.Namespace, teacher: Teacher) -> tuple[Head, Any]:
    from ianvs_specdec.training.heads import models
    from ianvs_specdec.training.heads.export import head_config

    model = teacher.model
    embedding = model.get_input_embeddings().weight.detach()
    unembedding = model.get_output_embeddings().weight.detach()
    config = head_config(teacher.config)
    if options.what == "medusa":
        heads = _recipe(options).steps
        return models.TrainableMedusa(config.hidden_size, unembedding, heads=heads, blocks=1), config
    if options.what == "eagle":
        return models.TrainableEagle(config, embedding, unembedding), config
    _ = teacher.eagle3_layers
    return models.TrainableEagle3(config, embedding, unembedding, model.base_model.norm.weight.detach()), config


def _claim(work: Path, options: argparse.Namespace) -> None:
    """Note what the folder is for; refuse one that belongs to another training."""
    work.mkdir(parents=True, exist_ok=True)
    digests = FileDigests(work / "model_files.json")
    purpose = {
        "head": options.what,
        "model": digest(digests.folder(options.model)),
        "data": digests.file(options.data) if options.data else "world",
        **{name: getattr(options, name) for name in ("conversations", "max_new_tokens", "length", "drafts", "seed")},
    }
    file = work / "purpose.json"
    if file.exists():
        known = json.loads(file.read_text(encoding="utf-8"))
        if different := [name for name, value in purpose.items() if known.get(name) != value]:
            raise UserError(
                f"{work} holds checkpoints of another training ({', '.join(different)} differ): "
                "delete it or give another folder with --work",
                key="work",
            )
    write_atomically(file, json.dumps(purpose, indent=2) + "\n")


def _sources(
    given: list[Conversation] | None, options: argparse.Namespace
) -> tuple[Callable[[int], Sequence[Conversation]], list[Conversation]]:
    """What to ask for shard i of the pool, and what to measure with."""
    from ianvs_specdec.training.heads import conversations
    from ianvs_specdec.training.heads.pool import SHARD

    if given is None:

        def shard_of_world(index: int) -> list[Conversation]:
            size = min(SHARD, options.conversations - index * SHARD)
            return list(islice(conversations.world_conversations(random.Random(f"{options.seed}/{index}")), size))

        return shard_of_world, conversations.world_development(options.seed)
    order = random.Random(options.seed).sample(given, len(given))
    held_out = order[:: conversations.HELD_OUT][:256]
    kept = [c for i, c in enumerate(order) if i % conversations.HELD_OUT or len(order) == 1][: options.conversations]
    return (lambda index: kept[index * SHARD : (index + 1) * SHARD]), held_out


def _pool(
    teacher: Teacher,
    asked: Callable[[int], Sequence[Conversation]],
    layers: Sequence[int],
    folder: Path,
    options: argparse.Namespace,
) -> list[Sample]:
    from ianvs_specdec.training.heads import pool

    shards = -(-options.conversations // pool.SHARD)
    while shards > 1 and not asked(shards - 1):
        shards -= 1
    return pool.fill(folder, shards, lambda index: teacher.samples(asked(index), layers), _report)


def _tau(head: Head, samples: Sequence[Sample], steps: int, device: str) -> str:
    from ianvs_specdec.training.heads.loop import accepted_length

    taus = accepted_length(head, samples, steps, device)
    return "tau " + " ".join(f"{group} {tau:.2f}" for group, tau in taus.items())


def _report(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
