"""A user's drafter: in YAML, on the command line, and its errors."""

from __future__ import annotations

import json

import pytest

from ianvs_specdec import drafters
from ianvs_specdec.commands.cli import main
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.plugin.models import EdgeModel
from ianvs_specdec.plugin.settings import ModelSettings
from ianvs_specdec.records.identity import FileDigests
from tests.support.drafters import shown_drafter

CODE = """
from dataclasses import dataclass

from ianvs_specdec.engine import Drafter, TokenTree


@dataclass
class Noted:
    name: str


class Repeats(Drafter):
    def __init__(self, times: int, table: str = "") -> None:
        if times < 1:
            raise ValueError("times must be 1 or more")
        self.times = times

    def propose(self, context, budget):
        last = context.tokens[-1]
        return TokenTree.chain(last, [last] * min(self.times, budget))


class Bystander:
    pass
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """A file with drafters, relative to the working folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    return "mine.py"


def refused(drafter, **options):
    with pytest.raises(UserError) as caught:
        drafters.check("own", {"drafter": drafter, "drafter_options": options})
    return caught.value.key, str(caught.value)


def test_options_are_passed_and_no_byte_code_is_written(file, tmp_path):
    settings = {"drafter": f"{file}:Repeats", "drafter_options": {"times": 3}, "length": "fixed:2"}
    assert drafters.create("own", settings).times == 3
    assert drafters.default_length("own") == "full"
    assert [path.name for path in tmp_path.iterdir()] == [file]


def test_wrong_names_and_options_are_reported(file):
    assert refused("mine.py")[1].startswith("drafter must be a file and a class in it, path/to/file.py:Class")
    key, message = refused("yours.py:Repeats", times=1)
    assert (key, "there is no file" in message, "yours.py" in message) == ("drafter", True, True)
    assert "unknown class in mine.py: 'Repeat'. Did you mean 'Repeats'" in refused(f"{file}:Repeat")[1]
    assert refused(f"{file}:Bystander")[1].startswith("Bystander in mine.py is not a Drafter")
    key, message = refused(f"{file}:Repeats", tims=1)
    assert (key, message.partition(" Known")[0]) == (
        "drafter_options",
        "unknown option of Repeats 'tims'. Did you mean 'times'?",
    )
    assert refused(f"{file}:Repeats")[1] == "drafter Repeats needs times"
    with pytest.raises(UserError, match="drafter is missing: a file and a class in it"):
        drafters.check("own", {})


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import torch\n\n1 / 0\n", "mine.py:3: ZeroDivisionError: division by zero"),
        ("\ndef broken(:\n", "mine.py:2: SyntaxError: "),
        ("import sys\nsys.exit(3)\n", "mine.py:2: SystemExit: 3"),
    ],
)
def test_errors_in_the_file_have_its_line(file, tmp_path, code, told):
    (tmp_path / file).write_text(code)
    assert refused("mine.py:Repeats")[1].startswith(told)


def test_errors_of_the_constructor_have_their_line(file):
    line = CODE[: CODE.index("raise ValueError")].count("\n") + 1
    with pytest.raises(UserError, match=rf"mine.py:{line}: ValueError: times must be 1 or more"):
        drafters.create("own", {"drafter": f"{file}:Repeats", "drafter_options": {"times": 0}})


def test_journal_keys_contain_file_contents_and_class(file, tmp_path, tiny_model):
    def options(name="Repeats", **given):
        given = {"model": str(tiny_model), "backend": "SpecDec", "drafter": f"{file}:{name}", "drafter_options": given}
        return ModelSettings.parse(given).llm("SpecDec").identity(FileDigests(tmp_path / "digests.json"))["options"]

    (tmp_path / "mine.py").write_text(CODE + "\n\nclass Others(Repeats):\n    pass\n")
    (tmp_path / "table.txt").write_text("one")
    first = options(times=2, table="table.txt")
    assert first["drafter_options"]["times"] == 2
    assert options(times=2, table="table.txt") == first != options("Others", times=2, table="table.txt")
    (tmp_path / "table.txt").write_text("two")
    second = options(times=2, table="table.txt")
    assert second != first
    with (tmp_path / "mine.py").open("a") as source:
        source.write("# another file\n")
    assert options(times=2, table="table.txt") != second


def test_speedup_is_relative_to_autoregressive(job, file, tiny_model):
    row = {"query": {"turns": ["ab ab ab"], "scorer": "none"}, "gold": {}, "index": 0}
    settings = {"model": str(tiny_model), "dtype": "float32", "max_tokens": 12}
    EdgeModel(**settings, backend="autoregressive").predict(row)
    drafting = {"drafter": f"{file}:Repeats", "drafter_options": {"times": 2}}
    response = EdgeModel(**settings, backend="SpecDec", **drafting, length="fixed:1").predict(row)
    (turn,) = response["turns"]
    assert response["backend"] == "SpecDec"
    assert turn["baseline"]["identical"]
    assert max(step[0] for step in turn["trace"]["steps"]) == 1


def test_the_documented_drafter_decodes(tmp_path, tiny_model):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": ids}) + "\n" for ids in ([5, 6, 7, 5, 6, 7, 5], [9, 9, 9])))

    def decode(*method):
        arguments = ["--model", str(tiny_model), "--prompts", str(prompts), "--out", str(tmp_path / "out.jsonl")]
        assert main(["decode", *arguments, "--max-new-tokens", "40", *method]) == 0
        return [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]

    drafter = shown_drafter(tmp_path / "bigrams.py")
    plain, drafted = decode("--method", "none"), decode("--drafter", drafter, "--set", "longest=4")
    assert [row["output"] for row in drafted] == [row["output"] for row in plain]
    assert max(step["drafted"] for row in drafted for step in row["steps"]) == 4
    short = decode("--drafter", drafter, "--set", "longest=4", "--set", "length=fixed:2")
    assert max(step["drafted"] for row in short for step in row["steps"]) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 7 / 0", "mine.py:5: ZeroDivisionError: division by zero"),
        ("return [1, 2]", "mine.py: B.propose must return a TokenTree, not [1, 2]"),
        (
            "return TokenTree([c.tokens[-1], 5], [-1, 3])",
            "drafter B: the parents [-1, 3] of 2 nodes do not make a tree",
        ),
    ],
)
def test_errors_while_drafting_have_their_line(tmp_path, tiny_model, monkeypatch, capsys, body, message):
    monkeypatch.chdir(tmp_path)
    imports = "from ianvs_specdec.engine import Drafter, TokenTree"
    (tmp_path / "mine.py").write_text(f"{imports}\n\nclass B(Drafter):\n    def propose(self, c, b):\n        {body}\n")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [5, 6, 7]}\n')
    arguments = ["--model", str(tiny_model), "--prompts", "prompts.jsonl", "--out", "out.jsonl"]
    assert main(["decode", *arguments, "--drafter", "mine.py:B"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.jsonl").exists()
