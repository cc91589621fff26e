"""``specdec datastore build``: the datastore of the drafting methods rest and suffix."""

from __future__ import annotations

import argparse
import random
import sys
import time
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ianvs_specdec.commands.arguments import check_out
from ianvs_specdec.commands.hyperparameters import add_template, folder_of, template_sampling
from ianvs_specdec.common.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser("build", help="index texts, conversations or token sequences for a model")
    add = build.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="the target model: folder or GGUF file")
    data = """.txt, or JSONL: {"text"}, {"tokens"}, {"turns", "answers"}, {"messages"}, {"question", "answer"} or the
    output of `specdec decode`; .gz too"""
    add("--data", type=Path, nargs="+", default=[], metavar="FILE", help=data)
    world = "add N training conversations of the embedded world"
    add("--world", type=int, default=0, metavar="N", help=world)
    add("--out", type=Path, required=True, metavar="FILE", help="datastore to write")
    field = "part of a line to index: all of it (default) or only its answers"
    add("--field", choices=("text", "answer"), default="text", help=field)
    add_template(build)
    add("--seed", type=int, default=0, help="of the embedded world's conversations")


def run(options: argparse.Namespace) -> int:
    if not options.data and options.world < 1:
        raise UserError("nothing to build from: give files with --data, or --world N")
    check_out(options.out)
    if missing := [str(path) for path in options.data if not path.is_file()]:
        raise UserError(f"--data: there is no file {missing[0]}")

    from ianvs_specdec.drafters.datastore import Datastore, fingerprint
    from ianvs_specdec.training.heads.conversations import world_conversations
    from ianvs_specdec.training.sequences import Sequences

    options.model = folder_of(options.model)
    tokenizer, vocabulary = _load(options.model)
    sequences = Sequences(tokenizer, vocabulary, options.field, template_sampling(options))
    talks = islice(world_conversations(random.Random(f"{options.seed}/datastore")), options.world)
    world = sequences.of_conversations((talk.turns, talk.answers) for talk in talks)
    started = time.perf_counter()
    store = Datastore.build(chain(sequences.of_files(options.data), world), vocabulary, fingerprint(options.model))
    store.save(options.out)
    seconds, size = time.perf_counter() - started, options.out.stat().st_size / 1e6
    print(f"{options.out}: {len(store)} tokens, {size:.1f} MB, {seconds:.1f} s", file=sys.stderr)
    return 0


def _load(folder: Path) -> tuple[Any, int]:
    """The model's tokenizer (None if it has none) and vocabulary size."""
    from transformers import AutoConfig, AutoTokenizer

    from ianvs_specdec.drafters.datastore import fingerprint
    from ianvs_specdec.models.json_files import without_bom
    from ianvs_specdec.models.loading import loading_error
    from ianvs_specdec.models.validation import read_config

    try:
        read_config(folder)
        config = AutoConfig.from_pretrained(without_bom(folder), local_files_only=True, trust_remote_code=False)
        tokenizer = None
        if fingerprint(folder):
            tokenizer = AutoTokenizer.from_pretrained(
                without_bom(folder), local_files_only=True, trust_remote_code=False
            )
    except Exception as error:  # damaged files raise anything
        raise loading_error(f"the tokenizer of --model {folder}", error) from error
    return tokenizer, int(config.get_text_config().vocab_size)
