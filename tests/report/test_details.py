"""Single queries: answers, routing, drafted tokens, and size limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.records.journal import Journal
from ianvs_specdec.report.collect import collect
from ianvs_specdec.report.details import LONGEST_TEXT, choose, pieces
from ianvs_specdec.report.page import to_html, to_json
from tests.report.conftest import ROWS
from tests.support.workspace import Bench, Side, choice, completion


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose tokenizer has one token per byte, the byte being the id."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    order = {letter: place for place, letter in enumerate(bytes_to_letters())}
    raw = Tokenizer(models.BPE(order, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.save(str(folder / "tokenizer.json"))
    return folder


def bytes_to_letters() -> list[str]:
    """The printable letter that byte-level tokenizers write for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, extra = [], 0
    for byte in range(256):
        letters.append(chr(byte) if byte in plain else chr(256 + extra))
        extra += byte not in plain
    return letters


def test_a_drafted_answer_token_by_token(tmp_path: Path, letters: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, [choice(0)])
    from tokenizers import Tokenizer

    text = "naïve, 漢字, 🙂 done"
    found = pieces(Tokenizer.from_file(str(letters / "tokenizer.json")), list(text.encode()))
    assert ("".join(found), len(found)) == (text, len(text.encode())), "bytes of a character add up"
    answer = completion("B, surely", drafting=True, rejected=[(ord("x"),), (), ()], near_ties=[(3, 1e-4)])
    bench.case("CloudOnly", [(None, Side("cloud", "EagleSpecDec", [answer], model=str(letters)))])
    (found,) = collect(bench.folder)["answers"]
    assert found["tokens"] == list("B, surely")
    assert found["kinds"] == "paataatat", "one token before the limit, the last step emits one accepted and its own"
    assert found["rejected"] == [[3, "x", 1]]
    assert found["near_ties"] == [3]
    assert found["chunks"][:2] == [[10.0, 1], [14.0, 3]]


def test_an_entry_says_who_answered_and_why(document: dict[str, Any]) -> None:
    # Those of the edge and of the cloud with two back ends, which include the router's answers.
    assert len(document["answers"]) == 24
    case = next(case for case in document["cases"] if case["router"] == "OddRouter")
    entry = case["entries"][1]
    assert document["queries"][entry["query"]] == {
        "index": 1,
        "id": "q1",
        "group": "odd",
        "scorer": "choice",
        "references": ["B"],
        "turns": ROWS[1]["question"]["turns"],
    }
    assert entry["side"] == "cloud"
    assert entry["routing"] == {"router": "OddRouter", "score": 0.9, "seconds": 1e-5}
    assert (entry["score"], entry["tokens"]) == (100.0, len("The answer is B."))
    assert document["answers"][entry["turns"][0]["answer"]]["text"] == "The answer is B."


def test_failed_queries_have_their_reason_and_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, [choice(number) for number in range(3)])
    reason = "no answer from the model within 5 s"
    fine = Side("cloud", "api", [completion("B", failures=[(0.5, "status 503")])])
    failed = Side("cloud", "api", [], details={"error": reason, "perf": {}})
    bench.case("CloudOnly", [(None, fine), (None, failed), (None, fine)])
    journal = Journal(bench.folder / "journal.sqlite", "run")
    journal.put_failure("0" * 64, AnswerError(reason, [(1.0, "timeout"), (4.0, "timeout")]), side="cloud")
    (case,) = collect(bench.folder)["cases"]
    assert case["failures"] == {"queries": 1, "attempts": {"status 503": 2, "timeout": 2}}
    entry = case["entries"][1]
    assert (entry["error"], entry["failures"], entry["turns"]) == (reason, [(1.0, "timeout"), (4.0, "timeout")], [])


def rows(failed: set[int] = frozenset(), differing: set[int] = frozenset(), count: int = 100) -> dict[int, Any]:
    def result(index: int) -> dict[str, Any]:
        turn = {"baseline": {"identical": index not in differing}}
        return {"error": "no answer", "turns": []} if index in failed else {"turns": [turn]}

    return {index: (False, result(index), None, None) for index in range(count)}


def test_what_is_chosen_to_be_looked_at() -> None:
    assert choose(rows(), 5) == [0, 24, 49, 74, 99]
    assert {17, 18} <= set(choose(rows(failed={17}, differing={18}), 6))
    assert len(choose(rows(failed=set(range(50))), 10)) == 10
    assert choose(rows(), 0) == []


def test_the_size_depends_on_the_number_of_shown_queries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path, [choice(number, text="long " * 10_000) for number in range(100)])
    bench.case("CloudOnly", [(None, Side("cloud", "autoregressive", [completion("The answer is B.")]))] * 100)
    whole, some, none = (collect(bench.folder, most) for most in (1000, 20, 0))
    assert [len(document["cases"][0]["entries"]) for document in (whole, some, none)] == [100, 20, 0]
    assert [document["cases"][0]["answered"] for document in (whole, some, none)] == [100] * 3
    assert len(some["queries"][0]["turns"][0]) < LONGEST_TEXT + 50
    assert "(30000 more characters)" in some["queries"][0]["turns"][0]
    assert len(to_json(none)) < 20_000 < len(to_json(some)) < 500_000 < len(to_json(whole))
    figures = [document["cases"][0]["figures"] for document in (whole, some, none)]
    assert figures[0] == figures[1] == figures[2]
    assert len(to_html(none)) < 120_000, "the page itself is small"
