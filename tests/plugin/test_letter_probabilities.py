"""The scorer choice_logprob: the option whose letter is the likeliest first token, whatever the answer says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ianvs_specdec.backends import backend
from ianvs_specdec.backends.top_logprobs import StreamedLogprobs, letters_of
from ianvs_specdec.benchmarks.extraction import LETTERS
from ianvs_specdec.benchmarks.scorers import LOGPROB
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Completion, Query, Sampling, Trace
from ianvs_specdec.plugin.response import with_letter
from ianvs_specdec.plugin.row_checks import without_letters
from ianvs_specdec.workspace.scoring import scores
from tests.support.folders import EDGE, EXAMPLE

LINE = (EXAMPLE / "dataset" / "knowledge" / "test.jsonl").read_text(encoding="utf-8").splitlines()[0]
ASKED = Sampling(max_tokens=1, logprobs=True)
OPTIONS = "Which?\nA. one\nB. two\nC. three\nAnswer:"


@pytest.mark.parametrize("name", ["autoregressive", "huggingface"])
def test_local_log_probabilities_are_those_of_the_model(name: str) -> None:
    chat = [{"role": "user", "content": json.loads(LINE)["question"]["turns"][0]}]
    tokenizer = transformers.AutoTokenizer.from_pretrained(EDGE)
    model = transformers.AutoModelForCausalLM.from_pretrained(EDGE, dtype=torch.float32)
    ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    known = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    expected = {
        letter: max(known[i].item() for form in (letter, f" {letter}") for i in tokenizer.encode(form)[-1:])
        for letter in LETTERS
    }
    with backend(name)(str(EDGE), dtype="float32", threads=1) as llm:
        trace = llm.generate(chat, ASKED).trace
    assert trace.first == []
    found = dict(trace.letters or ())
    assert found == pytest.approx({letter: expected[letter] for letter in found}, abs=1e-3)
    assert max(expected, key=expected.__getitem__) in found


def test_likelier_form_of_a_letter_counts() -> None:
    likely = [(" B", -1.0), ("A", -1.5), ("B", -0.5), ("Answer", -0.1), ("a", -0.2), ("AB", -0.3)]
    assert dict(letters_of(likely)) == {"B": -0.5, "A": -1.5}


def test_servers_tell_the_first_token_only() -> None:
    told = StreamedLogprobs()
    for letter in ("C", "A"):
        top = [{"token": letter, "logprob": -0.1}, {"token": " D", "logprob": -3.0}]
        told.add({"content": [{"token": letter, "logprob": -0.1, "top_logprobs": top}]})
    assert dict(told.letters) == {"C": -0.1, "D": -3.0}


@pytest.mark.parametrize(
    ("letters", "chosen"),
    [
        ([("A", -3.0), ("B", -0.5)], "B"),
        ([("A", -3.0)], "A"),  # of the others is known that they are less likely
        ([("D", -0.1), ("C", -2.0)], "C"),  # the question has no D
        ([], ""),
    ],
)
def test_choice_among_the_options(letters: list[tuple[str, float]], chosen: str) -> None:
    query = Query((OPTIONS,), scorer=LOGPROB)
    completion = Completion("A. one", [], 1, 1, "stop", Trace(letters=letters))
    answer = with_letter(query, completion).text
    assert answer == chosen
    result: dict[str, Any] = {"scorer": LOGPROB, "turns": [{"completion": answer}]}
    assert scores([result], ["C"]) == [100.0 * (chosen == "C")]
    with pytest.raises(AnswerError, match="no log-probabilities of letters"):
        with_letter(query, Completion("A. one", [], 1, 1, "stop", Trace()))


def test_back_ends_without_log_probabilities_are_refused_by_name(tmp_path: Path) -> None:
    rows = [("data.jsonl:7", {"turns": [OPTIONS], "scorer": LOGPROB}, "B")]
    vllm = backend("vllm")(str(EDGE))
    ((place, reason),) = without_letters(vllm, rows)
    assert (place, reason) == (
        rows[0][0],
        "scorer choice_logprob: the back end vllm gives no log-probabilities of letters: use scorer choice, or another "
        "back end, such as autoregressive, huggingface, llamacpp or api",
    )
    whole = {"question": "Which?", "choices": ["a", "b"], "answer": "B", "scorer": "choice_logprob", "subject": "law"}
    assert len(list(without_letters(vllm, [("data.jsonl:1", whole, "B")]))) == 1
    assert not list(without_letters(backend("autoregressive")(str(EDGE)), rows))
    assert not list(without_letters(vllm, [("data.jsonl:1", OPTIONS, "B")]))
