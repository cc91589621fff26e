"""``specdec train eagle|eagle3|medusa``: train a draft head for a model, from what the model itself says."""

from __future__ import annotations

import argparse
from pathlib import Path

from ianvs_specdec.commands.hyperparameters import add_template, folder_of, told
from ianvs_specdec.common.errors import UserError

KINDS = {
    "eagle": ("a head of EAGLE and EAGLE-2: one decoder layer over the last hidden state", 20.0),
    "eagle3": ("a head of EAGLE-3: one decoder layer over three hidden states, an output matrix of its own", 20.0),
    "medusa": ("heads of Medusa: each guesses one token, independently", 8.0),
}
"""Kind -> what it is, and the minutes that its training takes if nothing else is said."""
CONVERSATIONS = 12_288


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="the target model: folder or GGUF file"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the head; replaced if there")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help='JSONL: {"text"}, {"turns", "answers"} or {"prompt"}, which a chat model is asked as a user\'s turn '
        "(default: conversations of the embedded world)",
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
    add_template(parser)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads of torch")


def run(options: argparse.Namespace) -> int:
    for name in ("minutes", "tokens", "drafts", "conversations", "max_new_tokens", "length", "threads"):
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise UserError(f"--{name.replace('_', '-')} must be more than 0")
    if options.length < 3:
        raise UserError("--length must be at least 3")
    options.sampling = told(options)
    # What is wrong with the data is said before a model is loaded.
    from ianvs_specdec.training.heads import conversations

    given = conversations.read(options.data) if options.data else None
    options.model = folder_of(options.model)
    from ianvs_specdec.training.heads import job

    job.run(options, given)
    return 0
