"""``--help`` of every command and of all that is below it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

import pytest

from ianvs_specdec.commands.cli import COMMANDS


def below(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from below(sub)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    top = argparse.ArgumentParser(prog=f"specdec {command}")
    importlib.import_module(f"ianvs_specdec.commands.{command}").add_arguments(top)
    for parser in below(top):
        assert parser.format_help().startswith(f"usage: specdec {command}")
