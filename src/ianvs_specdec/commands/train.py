"""``specdec train world|eagle|eagle3|medusa|dflash``: the models of the embedded benchmark, and heads for any model."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

from ianvs_specdec.commands.arguments import option
from ianvs_specdec.commands.hyperparameters import add_template, folder_of, template_sampling
from ianvs_specdec.common.errors import UserError

HEADS = {
    "eagle": ("a head of EAGLE and EAGLE-2: one decoder layer over the last hidden state", 20.0),
    "eagle3": ("a head of EAGLE-3: one decoder layer over three hidden states, with its own output matrix", 20.0),
    "medusa": ("heads of Medusa: each guesses one token, independently", 8.0),
    "dflash": ("a head of DFlash: a small transformer over three hidden states drafts a block in one forward", 20.0),
}
"""Kind -> description, default training time in minutes."""
CONVERSATIONS = 12_288
SIZES = ("cloud", "edge")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    _add_world(kinds.add_parser("world", help="the embedded world: tokenizer, edge model, cloud model"))
    for name, (summary, minutes) in HEADS.items():
        head = kinds.add_parser(name, help=summary)
        _add_head(head)
        head.set_defaults(minutes=minutes)


def run(options: argparse.Namespace) -> int:
    for name in ("minutes", "tokens", "drafts", "conversations", "max_new_tokens", "length", "threads"):
        value = getattr(options, name, None)
        if value is not None and value <= 0:
            raise UserError(f"{option(name)} must be more than 0")
    if options.what == "world":
        from ianvs_specdec.training import world

        world.run(options, (options.only,) if options.only else SIZES)
        return 0
    if options.length < 3:
        raise UserError("--length must be at least 3")
    options.sampling = template_sampling(options)
    # Before a model is loaded, to report invalid data early.
    from ianvs_specdec.training.heads import conversations

    given = conversations.read(options.data) if options.data else None
    options.model = folder_of(options.model)
    from ianvs_specdec.training.heads import job

    job.run(options, given)
    return 0


def _add_world(parser: argparse.ArgumentParser) -> None:
    add, path = parser.add_argument, partial(parser.add_argument, type=Path, metavar="DIR")
    path("--out", required=True, help="folder for the models (OUT/edge, OUT/cloud)")
    path("--work", help="folder for checkpoints (default OUT/.training); a second run resumes from it")
    add("--only", choices=SIZES, help="train one of the two; the edge model learns from the cloud model")
    path("--cloud", help="the cloud model that the edge learns from (default: OUT/cloud)")
    minutes = "time budget for each model (default: the recipe's; the edge's ends when its loss plateaus)"
    add("--minutes", type=float, metavar="M", help=minutes)
    add("--seed", type=int, default=1)
    add("--device", default="cpu")
    add("--threads", type=int, default=os.cpu_count() or 1)


def _add_head(parser: argparse.ArgumentParser) -> None:
    add, path = parser.add_argument, partial(parser.add_argument, type=Path)
    path("--model", required=True, metavar="DIR", help="the target model: folder or GGUF file")
    path("--out", required=True, metavar="DIR", help="folder for the head; replaced if there")
    data = """JSONL: {"text"}, {"turns", "answers"} or {"prompt"}, a user message for a chat model (default:
    conversations of the embedded world)"""
    path("--data", metavar="FILE", help=data)
    answers = f"number of answers that the model generates (default {CONVERSATIONS}, or all of --data if fewer)"
    add("--conversations", type=int, default=CONVERSATIONS, metavar="N", help=answers)
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument("--minutes", type=float, metavar="M", help="training time, without the model's answers")
    budget.add_argument("--tokens", type=int, metavar="N", help="number of drafted tokens to train on instead")
    add("--drafts", type=int, metavar="K", help="tokens drafted in a row, or in a block (default 7; medusa: heads, 4)")
    add("--max-new-tokens", type=int, default=256, metavar="N", help="maximum tokens of an answer")
    add("--length", type=int, default=1024, metavar="N", help="maximum tokens of a conversation")
    path("--work", metavar="DIR", help="folder for checkpoints (default: next to OUT); a second run resumes")
    add_template(parser)
    add("--seed", type=int, default=1)
    add("--device", default="cpu")
    add("--threads", type=int, metavar="N", help="CPU threads of torch")
