"""``specdec route label``: what it cannot work with is told before anybody is asked."""

from __future__ import annotations

import pytest

from tests.support.api_server import ScriptedAPI
from tests.support.labelling import Place


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "the file has no questions"),
        (b'{"question": "q"}\n', "data.jsonl:1: the key 'answer' is missing"),
        (b'{"question": "q", "answer": "B"}\n{"question"\n', "data.jsonl:2: not JSON"),
        (b'{"question": "\\ud800", "answer": "B"}\n', "data.jsonl:1: the question holds half of a character"),
        (b'{"question": 5, "answer": "B"}\n', "data.jsonl:1: a question must be a string or an object"),
        (b'{"question": "q", "answer": ""}\n', "data.jsonl:1: its scorer text can make nothing of the row's answer ''"),
        (b'{"question": {"turns": ["q"], "scorer": "none"}, "answer": "B"}\n', "its scorer none compares with nothing"),
    ],
)
def test_data_that_will_not_do_is_told_before_anyone_is_asked(
    place: Place, api: ScriptedAPI, content: bytes, part: str
) -> None:
    place.data.write_bytes(content)
    assert part in place.refused()
    assert not api.bodies


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--quality", "bleu"], "unknown quality scorer 'bleu'. Known: benchmark, chrf, rouge-l, seq2seq:FOLDER"),
        (["--quality", "seq2seq:nowhere"], "there is no model in it"),
        (["--quality", "chrf"], "data.jsonl:1: its answer is a letter"),
        (["--label", "soft"], "--label soft needs several answers"),
        (["--samples", "2", "--temperature", "0"], "--temperature must be above 0"),
        (["--temperature", "1"], "--temperature is that of --samples"),
        (["--epsilon", "nan"], "--epsilon must be from 0 to 1"),
        (["--algorithm", "oracle"], "--algorithm needs --job"),
        (["-o", "out.csv"], "give a name that ends in .jsonl"),
        (["--edge-backend", "ape"], "--edge-backend: unknown back end 'ape'. Did you mean 'api'?"),
        (["--cloud-set", "max_tokens=0"], "--cloud-set max_tokens: max_tokens must be a whole number from 1"),
        (["--scorer-set", "judge=x"], "--scorer-set judge: unknown hyperparameter 'judge'"),
    ],
)
def test_arguments_that_will_not_do(place: Place, api: ScriptedAPI, arguments: list[str], part: str) -> None:
    assert part in place.refused(*arguments)
    assert not api.bodies


def test_settings_are_blamed_by_file_and_line(place: Place, api: ScriptedAPI) -> None:
    with (place.folder / "cloud.yaml").open("a") as file:
        file.write("temprature: 1\n")
    assert "cloud.yaml:7: unknown hyperparameter 'temprature'. Did you mean 'temperature'?" in place.refused()
    (place.folder / "cloud.yaml").write_text("model: [\n")
    assert "cloud.yaml:2: not valid YAML" in place.refused()
    (place.folder / "cloud.yaml").write_text("backend: api\n")
    assert "no cloud model: give --cloud FILE" in place.refused()
