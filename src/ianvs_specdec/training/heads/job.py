"""The training of one head from the command's options to the finished folder."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.progress import Progress
from ianvs_specdec.common.storage.purpose import check_purpose
from ianvs_specdec.models.templates import DEFAULT_SAMPLING, read_template, with_template_time
from ianvs_specdec.records.identity import FileDigests, digest
from ianvs_specdec.training.course import tell
from ianvs_specdec.training.heads import conversations, dflash, export, loop, models, pool
from ianvs_specdec.training.heads.conversations import Conversation
from ianvs_specdec.training.heads.payoff import payoff
from ianvs_specdec.training.heads.pool import Sample
from ianvs_specdec.training.heads.teacher import Teacher

STREAM = 512
"""Conversations of the embedded world that are drawn with one seed."""


def run(options: argparse.Namespace, given: list[Conversation] | None) -> None:
    """Train on the ``given`` conversations, None for those of the embedded world."""
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    teacher = Teacher(options.model, device=options.device, length=options.length, answer=options.max_new_tokens)
    drafts = options.drafts or (4 if options.what == "medusa" else 7)
    recipe = loop.HeadRecipe(options.minutes, options.tokens, steps=drafts, seed=options.seed)
    if options.what == "dflash":
        recipe = replace(recipe, discount=dflash.DISCOUNT)
    work: Path = options.work or options.out.with_name(f".{options.out.name}.training")
    _claim(work, options)
    teacher.sampling = with_template_time(options.sampling, read_template(options.model), work)
    layers = teacher.eagle3_layers if options.what in ("eagle3", "dflash") else ()
    if given is not None:
        given = teacher.asked(given, tell)
    learned, held_out = _sources(given, options)
    tell(f"asking the model for {len(learned)} conversations to learn from, and for {len(held_out)} that are held out")
    parts = {"to learn from": -(-len(learned) // pool.SHARD), "held out": -(-len(held_out) // pool.SHARD)}
    progress = Progress(f"parts of {pool.SHARD} conversations", parts, "an earlier run")
    fill = partial(pool.fill, make=lambda part: teacher.samples(part, layers))
    samples = fill(work / "pool", learned, done=partial(progress.step, "to learn from"))
    development = fill(work / "held-out", held_out, done=partial(progress.step, "held out"))
    progress.close()
    if not samples:
        raise UserError(
            "no answer has the two tokens that a draft needs: give more or longer conversations", key="data"
        )
    if (longest := max(int(sample.run[1:].max()) for sample in samples) - 1) < drafts:
        tell(f"no answer is long enough for more than {longest} of {drafts} drafts: nothing is learned for the others")

    head, config = _head(options.what, teacher, drafts, samples)

    def evaluate(trained: models.TrainableHead) -> str:
        taus = loop.accepted_length(trained, development, drafts, options.device)
        return "tau " + (" ".join(f"{group} {tau:.2f}" for group, tau in taus.items()) or "unknown: short answers")

    unembedding = teacher.model.get_output_embeddings().weight.detach()
    unembedding = unembedding if head.kept is None else unembedding[head.kept]
    steps = loop.train(head, samples, unembedding, recipe, work, device=options.device, evaluate=evaluate, report=tell)
    export.write(head, config, options.model.name, options.out)
    tell(f"{options.out}: {options.what} head after {steps} steps")
    tell(payoff(options.what, options.out, teacher.target, development, teacher.ends))


def _head(kind: str, teacher: Teacher, drafts: int, samples: Sequence[Sample]) -> tuple[models.TrainableHead, Any]:
    embedding = teacher.model.get_input_embeddings().weight.detach()
    unembedding = teacher.model.get_output_embeddings().weight.detach()
    config = export.head_config(teacher.config)
    if kind == "medusa":
        return models.TrainableMedusa(config.hidden_size, unembedding, heads=drafts, blocks=1), config
    if kind == "dflash":
        marks = (getattr(teacher.tokenizer, name, None) for name in ("mask_token_id", "pad_token_id"))
        mask = next((token for token in marks if token is not None), config.vocab_size - 1)
        return dflash.TrainableDFlash(config, teacher.model, teacher.eagle3_layers, drafts=drafts, mask=mask), config
    if kind == "eagle":
        return models.TrainableEagle(config, embedding, unembedding), config
    norm, kept = teacher.model.base_model.norm.weight.detach(), _said(samples, len(unembedding))
    if kept is not None:
        tell(f"draft vocabulary: the {len(kept)} of {len(unembedding)} tokens that the model has said")
    return models.TrainableEagle3(config, embedding, unembedding, norm, kept), config


def _said(samples: Sequence[Sample], vocabulary: int) -> Tensor | None:
    """The ids that the target has said in the samples, for a draft vocabulary; None where they are most of its own, so
    that the mapping would bring little. Of others a head learns nothing, and they cost as much as these.
    """
    said = torch.cat([sample.tokens[sample.run > 0] for sample in samples]).unique()
    return said if 2 * len(said) <= vocabulary else None


def _claim(work: Path, options: argparse.Namespace) -> None:
    """Note what the folder is for; refuse one that belongs to another training."""
    work.mkdir(parents=True, exist_ok=True)
    digests = FileDigests(work / "model_files.json")
    purpose = {
        "head": options.what,
        "model": digest(digests.folder(options.model)),
        "data": digests.file(options.data) if options.data else "world",
        **({} if options.sampling == DEFAULT_SAMPLING else {"template": options.sampling.to_json()}),
        **{name: getattr(options, name) for name in ("conversations", "max_new_tokens", "length", "drafts", "seed")},
    }
    check_purpose(work, purpose, what="checkpoints of another training", key="work")


def _sources(
    given: list[Conversation] | None, options: argparse.Namespace
) -> tuple[list[Conversation], list[Conversation]]:
    if given is None:
        streams = (random.Random(f"{options.seed}/{index}") for index in range(options.conversations // STREAM + 1))
        drawn = [c for rng in streams for c in islice(conversations.world_conversations(rng), STREAM)]
        return drawn[: options.conversations], conversations.world_development(options.seed)
    order = random.Random(options.seed).sample(given, len(given))
    kept = [c for i, c in enumerate(order) if i % conversations.HELD_OUT or len(order) == 1]
    return kept[: options.conversations], order[:: conversations.HELD_OUT][:256]
