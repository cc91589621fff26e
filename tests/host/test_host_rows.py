"""What a plugin says about the data rows, told with file and line before anything runs."""

from __future__ import annotations

import json
import os

import pytest

from tests.host.host_job import Job
from tests.support.paths import EXAMPLE

ROUTING = EXAMPLE / "testalgorithms" / "query-routing"
CHOICE = "q?\nA. one\nB. two\nC. three\nD. four"


def choice(name: str, answer: object = "A", **fields: object) -> dict[str, object]:
    return {"question": {"turns": [CHOICE], "id": name, "scorer": "choice", **fields}, "answer": answer}


@pytest.fixture
def plugin(job: Job) -> Job:
    """A job whose rows go through the plugin's own dataset processor."""
    url = str(ROUTING / "data_processor.py")
    job.modules.insert(0, {"type": "dataset_processor", "name": "DatasetProcessor", "url": url})
    return job


FAULTS = [
    (choice("x", scorer="choise"), "the question: unknown scorer 'choise'. Did you mean 'choice'?"),
    (choice("x", turns=["a", None]), "the question: 'turns' must be a list"),
    (choice("x", turns=["a", "\n"]), "the question: turn 2 of 'turns' is blank"),
    ({"question": "\u200b", "answer": "A"}, "the question: turn 1 of 'turns' is blank"),
    (choice("x", turns=["a\ud800"]), "half of a character, \\ud800, stands at character 2"),
    (choice("x", answer="E"), "the answer: it is 'E', but the question's options are A to D"),
    ({"question": "q?", "choices": ["a", "b"], "answer": 2}, "needs the letter of an option, A to B, not 2"),
    ({"question": "q?", "choices": ["a", 1], "answer": 0}, "the question: 'choices' must hold the only options"),
    ({"question": "q?", "choices": ["a"], "answer": 0}, "the question: 'choices': 1 options; there must be 2 to 10"),
    ({"question": "q?", "choices": {"text": ["a", "b"], "label": ["A"]}, "answer": 0}, "cannot have the labels A"),
    ({"question": "q?", "choices": ["a", "b"], "options": ["c", "d"], "answer": 0}, "must hold the only options"),
    ({"question": "q?", "prompt": "You are ...", "answer": "A"}, "unknown field 'prompt'"),
    ({"question": "q?", "turns": ["a"], "answer": "A"}, "the question has 'turns' twice"),
    (choice("x", answer="Athens"), "needs the letter of an option, A to D, not 'Athens'. Did you mean 'A'?"),
    (choice("x", answer="many", scorer="number"), "the answer: scorer number cannot read 'many'"),
    (choice("x", answer=["a"], scorer="text"), "the answer: scorer text needs a text"),
    (choice("x", answer={"refrences": ["a"]}, scorer="text"), "unknown field 'refrences'. Did you mean 'references'?"),
    (choice("x", answer={"references": "a"}, scorer="text"), "'references' must be a list of texts"),
    (choice("x", answer="a", scorer="code"), "scorer code needs an object with the texts prompt, entry_point, test"),
    (choice("good"), "the id 'good' is a duplicate, first in data.jsonl:1"),
    (choice("x", id=None), "'id' must be a text or a whole number, not None"),
    (choice("x", system=3), "'system' must be a text, not 3"),
    (choice("x", temperature=float("nan")), "'temperature' must be a number from 0, not nan"),
    (choice("x", prediction=["a", "b"]), "2 texts in 'prediction' for 1 turns"),
    ('{"question": "q", "answer": "A", "answer": "B"}', "the key 'answer' stands twice"),
    ('{"question": "q", "answer": %s}' % ("9" * 5000), "not usable JSON: Exceeds the limit"),
    ('{"question": "q", "answer": ' + "[" * 70 + "1" + "]" * 70 + "}", "nested more than 64 levels deep"),
    ('{"question": "q", "answer": ' + "[" * 99_999 + "1" + "]" * 99_999 + "}", "not usable JSON: nested"),
]


@pytest.mark.parametrize(("row", "told"), FAULTS, ids=range(len(FAULTS)))
def test_check_finds_what_the_run_would(plugin: Job, capfd: pytest.CaptureFixture[str], row: object, told: str) -> None:
    plugin.rows([choice("good"), choice("other", "B"), row])
    (line,) = plugin.checked(capfd, 2)
    assert line.startswith("ianvs: data.jsonl:3: ")
    assert told in line
    assert len(line) < 400


def test_rows_that_are_in_order(plugin: Job, capfd: pytest.CaptureFixture[str]) -> None:
    plugin.rows([
        choice("a", "D"), choice("b", "B) two"), choice("c", "E", turns=["no options"]), {"question": "q", "answer": 7},
        choice("d", "1,000", scorer="number"), choice("e", {"references": ["r"]}, scorer="text"),
        choice("f", {"anything": [1]}, scorer="none"), choice("g", None, scorer="judge"),
        {"question": "q", "answer": ""}, choice("i", "(b)"), choice("j", 2),
        choice("h", "B", turns=["1?\nA. a\nB. b\nC. c\nAnswer: C\n\n2?\nA. a\nB. b\nAnswer:"]),
    ])  # fmt: skip
    plugin.checked(capfd, 0)


HUB = {
    "mmlu": {"question": "Which?", "subject": "letters", "choices": ["one", "two"], "answer": 1},
    "arc": {"question": "Which?", "choices": {"text": ["one", "two"], "label": ["1", "2"]}, "answerKey": "2"},
    "mapping": {"question": "Which?", "options": {"A": "one", "B": "two"}, "answer": "two", "temperature": 0.5},
    "columns": {"question": "Which?", "A": "one", "B": "two", "answer": "b", "explanation": "it is"},
}


@pytest.mark.parametrize("kind", HUB)
def test_check_tells_how_rows_of_the_hub_are_read(job: Job, kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    """By the edge model: the job has no dataset processor."""
    job.modules[0]["url"] = str(ROUTING / "edge_model.py")
    job.hyperparameters(0, model=[str(EXAMPLE / "models/edge")])
    job.rows([HUB[kind], {"question": "Who?", "answer": ""}])
    assert job.run("check") == 0
    _, first, scorers = capfd.readouterr().out.splitlines()
    assert first == "data.jsonl:1 is asked as 'Which?\\nA. one\\nB. two\\nAnswer:'; scorer choice, answer 'B'"
    assert scorers == "scorers: 1 choice, 1 text without an answer to compare with"


def test_the_answer_is_compared_with_the_last_list_of_options(plugin: Job, capfd: pytest.CaptureFixture[str]) -> None:
    plugin.rows([choice("h", "C", turns=["1?\nA. a\nB. b\nC. c\nAnswer: C\n\n2?\nA. a\nB. b\nAnswer:"])])
    assert "options are A to B" in plugin.checked(capfd, 2)[0]


def test_many_faults_are_told_in_few_lines(plugin: Job, capfd: pytest.CaptureFixture[str]) -> None:
    plugin.rows([choice("same")] * 40)
    first, last = plugin.checked(capfd, 2)
    assert "(also at 3, 4, 5, 6, 7, 8, 9, 10 and 1 more)" in first
    assert last == "ianvs: data.jsonl: 29 further rows cannot be used for similar reasons"
    plugin.rows([choice("same")] * 2000)
    assert "990 further rows at least" in plugin.checked(capfd, 2)[-1]


def test_lines_are_those_of_the_file_where_rows_are_left_out(plugin: Job, capfd: pytest.CaptureFixture[str]) -> None:
    plugin.env["on_malformed_row"] = "skip"
    plugin.rows(["no JSON", choice("a"), "", choice("a")])
    told = "data.jsonl:4: the question: the id 'a' is a duplicate, first in data.jsonl:2"
    assert told in plugin.checked(capfd, 2)[-1]


def test_without_a_processor_the_models_are_asked(job: Job, capfd: pytest.CaptureFixture[str]) -> None:
    body = """
    @classmethod
    def check_rows(cls, hyperparameters, rows):
        return [(next(iter(rows))[0], 'no')]
    def predict(self, data): ...
    """
    job.define("algo/edge_model.py", "EdgeModel", body)
    assert job.checked(capfd, 2) == ["ianvs: data.jsonl:1: no"]


def test_what_is_no_data_file(plugin: Job, capfd: pytest.CaptureFixture[str]) -> None:
    file = plugin.folder / "data.jsonl"
    for content, told in (
        (b"\n\n", "data.jsonl: the dataset has no rows"),
        (
            json.dumps(choice("a")).encode("utf-16"),
            "data.jsonl:1: not UTF-8 text (byte 1 of the line). It is UTF-16 text",
        ),
        (b'{"question": "' + b"q" * (17 << 20), "data.jsonl:1: the line is longer than 16 MiB"),
    ):
        file.write_bytes(content)
        assert told in plugin.checked(capfd, 2)[0]
    file.unlink()
    os.mkfifo(file)
    assert "data.jsonl is not a file" in plugin.checked(capfd, 2)[0]
