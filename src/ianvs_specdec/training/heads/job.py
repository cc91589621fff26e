"""The training of one head from the command's options to the finished folder."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from ianvs_specdec.checkpoints.templates import UNTOLD, template_of, timed
from ianvs_specdec.errors import UserError
from ianvs_specdec.identity import FileDigests, digest
from ianvs_specdec.storage.purpose import keep_to
from ianvs_specdec.training.course import tell
from ianvs_specdec.training.heads import conversations, export, loop, models, pool
from ianvs_specdec.training.heads.conversations import Conversation
from ianvs_specdec.training.heads.teacher import Teacher

USELESS = 1.05
"""Tau below which drafts cost more than they save on any machine: of 100 tokens, fewer than 5 come from drafts."""


def run(options: argparse.Namespace, given: list[Conversation] | None) -> None:
    """Train on the ``given`` conversations, None for those of the embedded world."""
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    teacher = Teacher(options.model, device=options.device, length=options.length, answer=options.max_new_tokens)
    drafts = options.drafts or (4 if options.what == "medusa" else 7)
    recipe = loop.HeadRecipe(options.minutes, options.tokens, steps=drafts, seed=options.seed)
    head, config = _head(options.what, teacher, drafts)
    work: Path = options.work or options.out.with_name(f".{options.out.name}.training")
    _claim(work, options)
    teacher.sampling = timed(options.sampling, template_of(options.model), work)
    layers = teacher.eagle3_layers if head.wants_layers else ()
    asked, shards, held_out = _sources(given, options)
    samples = pool.fill(work / "pool", shards, lambda index: teacher.samples(asked(index), layers), tell)
    development = [sample for sample in teacher.samples(held_out, layers) if len(sample.starts)]
    if not samples or not development:
        raise UserError(
            "no answer has the two tokens that a draft needs: give more or longer conversations", key="data"
        )

    taus: dict[str, float] = {}

    def evaluate(trained: models.TrainableHead) -> str:
        taus.update(loop.accepted_length(trained, development, drafts, options.device))
        return "tau " + " ".join(f"{group} {tau:.2f}" for group, tau in taus.items())

    unembedding = teacher.model.get_output_embeddings().weight.detach()
    steps = loop.train(head, samples, unembedding, recipe, work, device=options.device, evaluate=evaluate, report=tell)
    export.write(head, config, options.model.name, options.out)
    tell(f"{options.out}: {options.what} head after {steps} steps")
    if taus and max(taus.values()) < USELESS:
        tell(
            f"this head is of no use yet: next to none of its drafts is accepted (tau {max(taus.values()):.2f}; 1 is "
            "decoding without drafts). Train longer: the same command with more --minutes goes on from here"
        )


def _head(kind: str, teacher: Teacher, drafts: int) -> tuple[models.TrainableHead, Any]:
    """An untrained head for the target, and its configuration."""
    embedding = teacher.model.get_input_embeddings().weight.detach()
    unembedding = teacher.model.get_output_embeddings().weight.detach()
    config = export.head_config(teacher.config)
    if kind == "medusa":
        return models.TrainableMedusa(config.hidden_size, unembedding, heads=drafts, blocks=1), config
    if kind == "eagle":
        return models.TrainableEagle(config, embedding, unembedding), config
    return models.TrainableEagle3(config, embedding, unembedding, teacher.model.base_model.norm.weight.detach()), config


def _claim(work: Path, options: argparse.Namespace) -> None:
    """Note what the folder is for; refuse one that belongs to another training."""
    work.mkdir(parents=True, exist_ok=True)
    digests = FileDigests(work / "model_files.json")
    purpose = {
        "head": options.what,
        "model": digest(digests.folder(options.model)),
        "data": digests.file(options.data) if options.data else "world",
        **({} if options.sampling == UNTOLD else {"template": options.sampling.to_json()}),
        **{name: getattr(options, name) for name in ("conversations", "max_new_tokens", "length", "drafts", "seed")},
    }
    keep_to(work, purpose, what="checkpoints of another training", key="work")


def _sources(
    given: list[Conversation] | None, options: argparse.Namespace
) -> tuple[Callable[[int], Sequence[Conversation]], int, list[Conversation]]:
    """What to ask for shard i of the pool, how many shards there are, and what to measure with."""
    if given is None:
        size, held_out = options.conversations, conversations.world_development(options.seed)
    else:
        order = random.Random(options.seed).sample(given, len(given))
        held_out = order[:: conversations.HELD_OUT][:256]
        kept = [c for i, c in enumerate(order) if i % conversations.HELD_OUT or len(order) == 1]
        size = min(options.conversations, len(kept))

    def asked(index: int) -> Sequence[Conversation]:
        first, end = index * pool.SHARD, min((index + 1) * pool.SHARD, size)
        if given is None:
            stream = conversations.world_conversations(random.Random(f"{options.seed}/{index}"))
            return list(islice(stream, end - first))
        return kept[first:end]

    return asked, -(-size // pool.SHARD), held_out
