"""Arguments of the edge model whose hidden states a probe reads, and the recorded states."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from ianvs_specdec.commands.arguments import option
from ianvs_specdec.commands.hyperparameters import add_model, model_of
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.progress import Progress
from ianvs_specdec.common.types import Query
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.routing.outcomes.hidden_states import RecordedStates, record

ARGUMENTS = ("edge", "edge_backend", "edge_set", "states")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser, "edge")
    states = "folder to store the edge's hidden states in, which a probe reads (default: OUT.states)"
    parser.add_argument("--states", type=Path, metavar="DIR", help=states)


def refuse(options: argparse.Namespace, reason: str) -> None:
    """Raise UserError if one of the arguments is given."""
    for name in ARGUMENTS:
        if getattr(options, name):
            raise UserError(f"{option(name)}: {reason}")


def record_states(
    options: argparse.Namespace,
    queries: Sequence[Query],
    out: Path,
    check: Callable[[str, str], None] = lambda model, digest: None,
    part: str = "",
) -> RecordedStates:
    """The edge model's pooled hidden states of the queries' prompts; those already recorded are reused. ``check`` may
    raise UserError for the model's name and digest. ``part``: subfolder for these queries. Raises UserError."""
    settings = ModelSettings.parse(model_of(options, "edge", EdgeModel.check_hyperparameters))
    folder = (options.states or out.with_name(f"{out.name}.states")) / part
    progress = Progress("prompts", {"edge": len(queries)})
    try:
        with settings.checked(settings.backend) as llm:
            return record(llm, queries, folder, lambda: progress.step("edge"), check, settings.sampling)
    finally:
        progress.close()
