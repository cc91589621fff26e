"""A folder for ``specdec route label``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.commands.cli import main
from tests.support.api_server import ScriptedAPI, answer
from tests.support.jsonl import read_jsonl

LETTERS = {"edge": "ABBA", "cloud": "BBBA"}
"""The models' choices for questions 0 to 3; B is right."""


def question(number: int, answer: Any = "B", **fields: Any) -> dict[str, Any]:
    question = {"turns": [f"Question {number}?"], "id": f"q{number}", "group": "g", "scorer": "choice", **fields}
    return {"question": question, "answer": answer}


def letters(api: ScriptedAPI, prompt: str, number: int) -> bytes:
    """By model and question."""
    place = int(prompt.split()[1].rstrip("?"))
    return answer(f"The answer is {LETTERS[api.bodies[number]['model']][place % 4]}.", tokens=5)


class Place:
    """A folder with questions, settings of both models on one API, and the command."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capsys = folder, capsys
        self.data, self.out = folder / "data.jsonl", folder / "out" / "outcomes.jsonl"
        self.out.parent.mkdir()

    def questions(self, *rows: Any) -> None:
        self.data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def settings(self, api: ScriptedAPI, **values: Any) -> None:
        for side in ("edge", "cloud"):
            given = {"model": side, "backend": "api", "api_base_url": api.url, "api_retries": 0, **values}
            if side == "cloud":
                given |= {"price_prompt": 100.0, "price_completion": 1000.0}
            # JSON is valid YAML.
            lines = (f"{key}: {json.dumps(value)}\n" for key, value in given.items())
            (self.folder / f"{side}.yaml").write_text("".join(lines), encoding="utf-8")

    def arguments(self, *more: str) -> list[str]:
        named = [part for side in ("edge", "cloud") for part in (f"--{side}", str(self.folder / f"{side}.yaml"))]
        return ["route", "label", "--data", str(self.data), *named, "-o", str(self.out), *more]

    def label(self, *more: str) -> tuple[list[dict[str, Any]], str, str]:
        """The lines written, standard output, standard error."""
        assert main(self.arguments(*more)) == 0
        captured = self._capsys.readouterr()
        return read_jsonl(self.out), captured.out, captured.err

    def refused(self, *more: str, code: int = 2) -> str:
        """The last line of standard error of a command that fails without writing files."""
        assert main(self.arguments(*more)) == code
        assert not self.out.exists()
        assert not [path for path in self.out.parent.iterdir() if path.suffix != ".journal"]
        message = self._capsys.readouterr().err
        assert "Traceback" not in message
        return message.splitlines()[-1]
