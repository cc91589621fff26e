"""``specdec data opencompass``: files of whole sets, parts, dialogues and failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ianvs_specdec.commands.cli import main
from ianvs_specdec.commands.opencompass import abbreviation
from ianvs_specdec.common.types import Trace


def job(folder: Path, rows: list[dict[str, Any]], answers: list[list[str] | None], name: str = "job") -> Path:
    """A workspace with one test case that has answered all rows; None = failed."""
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    case = folder / "workspace" / name / "cloud-only" / "abc"
    case.mkdir(parents=True)
    (case / "config.yaml").write_text(yaml.safe_dump({"dataset": str(data)}), encoding="utf-8")
    with (case / "answers.jsonl").open("w", encoding="utf-8") as file:
        for index, given in enumerate(answers):
            turns = [{"completion": text, "trace": Trace().to_json()} for text in given or ()]
            usage = {"prompt_tokens": 1, "completion_tokens": len(turns), "total_tokens": 1 + len(turns)}
            result = {"turns": turns, "usage": usage, **({"error": "timeout"} if given is None else {})}
            line = {"index": index, "is_hard": True, "result": result, "edge": None, "cloud": result}
            file.write(json.dumps(line) + "\n")
    return folder / "workspace"


def row(identifier: str, group: str, answer: Any = "B", *turns: str) -> dict[str, Any]:
    question = {"turns": list(turns or ("?",)), "id": identifier, "group": group, "scorer": "none"}
    return {"question": question, "answer": answer}


def export(workspace: Path, name: str = "cloud-only-abc") -> dict[str, dict[str, Any]]:
    out = workspace.parent / "out"
    assert main(["data", "opencompass", "--workspace", str(workspace), "--out", str(out)]) == 0
    folder = out / "predictions" / name
    return {file.name: json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir()}


def test_a_file_per_dataset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        row("anatomy-0002", "anatomy", "C"),
        row("gsm8k-0001", "gsm8k", "18"),
        row("anatomy-0001", "anatomy", "D"),
        row("HumanEval/0", "humaneval", {"prompt": "p", "test": "t", "entry_point": "e"}),
        row("cmmlu_arts-0001", "cmmlu_arts", "A"),
        row("own", "my group/!"),
    ]
    files = export(job(tmp_path, rows, [["two"], ["18"], ["one"], ["code"], None, ["x"]]))
    assert "cmmlu-arts.json: 1 questions, 1 without an answer\n" in capsys.readouterr().out
    assert files["lukaemon_mmlu_anatomy.json"] == {
        "0": {"origin_prompt": [{"role": "HUMAN", "prompt": "?"}], "prediction": "one", "gold": "D"},
        "1": {"origin_prompt": [{"role": "HUMAN", "prompt": "?"}], "prediction": "two", "gold": "C"},
    }
    assert list(files["lukaemon_mmlu_anatomy.json"]) == ["0", "1"]
    assert files["gsm8k.json"]["0"]["prediction"] == "18"
    assert files["openai_humaneval.json"]["0"]["gold"]["entry_point"] == "e"
    assert files["cmmlu-arts.json"]["0"]["prediction"] == ""
    assert files["my_group.json"]["0"]["prediction"] == "x"


def test_dialogues_are_lists_by_turn(tmp_path: Path) -> None:
    query = row("81", "writing", {"references": ["r"]}, "one?", "two?")
    query["question"]["system"] = "be kind"
    (entry,) = export(job(tmp_path, [query], [["1", "2"]]))["writing.json"].values()
    system, first = {"role": "SYSTEM", "prompt": "be kind"}, {"role": "HUMAN", "prompt": "one?"}
    assert entry == {
        "origin_prompt": [
            [system, first],
            [system, first, {"role": "BOT", "prompt": "1"}, {"role": "HUMAN", "prompt": "two?"}],
        ],
        "prediction": ["1", "2"],
        "gold": ["r", ""],
    }


def test_unsupported_exports_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["data", "opencompass", "--out", str(tmp_path / "out"), "--workspace"]
    assert main([*arguments, str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    workspace = job(tmp_path, [row("virology-0001", "virology")] * 2, [["a"], ["b"]])
    assert main([*arguments, str(workspace)]) == 2
    assert "two questions have the number of 'virology-0001'" in capsys.readouterr().err
    (tmp_path / "data.jsonl").write_text("", encoding="utf-8")
    assert main([*arguments, str(workspace)]) == 2
    assert "row 1 was answered, but the data file now has 0 rows" in capsys.readouterr().err
    (tmp_path / "data.jsonl").unlink()
    assert main([*arguments, str(workspace)]) == 2
    assert "data.jsonl of cloud-only is not there" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_groups_never_leave_the_folder() -> None:
    assert abbreviation("../../x") == "x"
    assert abbreviation("..") == abbreviation("") == "data"
