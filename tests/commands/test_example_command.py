"""``specdec example`` copies exactly the example, atomically."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ianvs_specdec.commands import cli, example
from ianvs_specdec.commands.example import EXAMPLE, contents
from tests.support.paths import ROOT


def test_the_example_is_copied_unchanged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["example", "my work"]) == 0
    copied = tmp_path / "my work" / EXAMPLE
    files = contents(ROOT / EXAMPLE)
    assert [path.name for path in copied.parent.iterdir()] == [EXAMPLE.name]
    assert sorted(path.relative_to(copied) for path in copied.rglob("*") if path.is_file()) == files
    for file in files:
        assert (copied / file).read_bytes() == (ROOT / EXAMPLE / file).read_bytes()
    told, change, command = capsys.readouterr().out.splitlines()
    assert f"{len(files)} files" in told
    assert change == "cd 'my work'"
    assert command == "ianvs -f examples/cloud-edge-speculative-decoding/benchmarkingjob.yaml"
    assert (tmp_path / "my work" / command.split()[-1]).is_file()


def test_the_example_has_the_files_of_the_repository():
    listed = subprocess.run(["git", "ls-files", EXAMPLE], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no git repository")
    assert {(EXAMPLE / file).as_posix() for file in contents(ROOT / EXAMPLE)} == set(listed.stdout.splitlines())


def test_generated_files_are_not_copied(tmp_path):
    left = ("dataset/mmlu.jsonl", "__pycache__/x.pyc", "testenv/__pycache__/y.pyc", ".z")
    for file in (*left, "dataset/own/test.jsonl"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert contents(tmp_path) == [Path("dataset/own/test.jsonl")]


def test_an_existing_folder_is_unchanged(tmp_path, capsys):
    there = tmp_path / EXAMPLE
    there.mkdir(parents=True)
    (there / "mine.yaml").write_text("mine")
    assert cli.main(["example", str(tmp_path)]) == 2
    assert "is there already: name another folder" in capsys.readouterr().err
    assert [path.name for path in there.parent.iterdir()] == [EXAMPLE.name]
    assert [path.name for path in there.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize(("error", "status"), [(OSError(28, "No space left on device"), 1), (KeyboardInterrupt(), 130)])
def test_an_interrupted_copy_leaves_nothing(error, status, tmp_path, monkeypatch, capsys):
    copied = []

    def copy(source, target):
        if len(copied) == 3:
            raise error
        copied.append(target.write_bytes(source.read_bytes()))

    monkeypatch.setattr(example.shutil, "copyfile", copy)
    assert cli.main(["example", str(tmp_path / "new")]) == status
    assert capsys.readouterr().err.count("\n") == 1
    assert len(copied) == 3
    assert list((tmp_path / "new").rglob("*")) == [tmp_path / "new" / "examples"]
