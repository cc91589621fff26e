"""``ianvs_specdec.LLM``: the code of docs/python.md, batches, streams, errors."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import ianvs_specdec
from ianvs_specdec import LLM, SamplingParams
from ianvs_specdec.backends import backend
from ianvs_specdec.common.errors import AnswerError, UserError
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "python.md"
PROMPTS = ["ab ab ab", "cd", "the river and the river", "abcabcabc"]
SAMPLING = SamplingParams(max_tokens=12)


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), method="prompt_lookup", threads=1)


@pytest.mark.slow
def test_code_in_docs_python_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    assert len(blocks[0].strip().splitlines()) == 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert "drafted" in capsys.readouterr().out


def test_batches_have_the_answers_of_single_prompts(llm: LLM, tiny_model: Path) -> None:
    together = llm.generate(PROMPTS, SAMPLING)
    assert [answer.token_ids for answer in together] == [llm.generate(p, SAMPLING)[0].token_ids for p in PROMPTS]
    with LLM(str(tiny_model), threads=1) as plain:
        assert [answer.text for answer in plain.generate(PROMPTS, SAMPLING)] == [answer.text for answer in together]
    assert all(answer.trace.steps and answer.trace.latency for answer in together)
    assert [answer.prompt_tokens for answer in llm.generate([[5, 6, 7], [8]], SAMPLING)] == [3, 1]
    assert llm.generate([5, 6, 7], SAMPLING)[0].prompt_tokens == 3


def test_chats_use_the_template(llm: LLM, tiny_model: Path) -> None:
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    together = [answer.text for answer in llm.chat(chats, SAMPLING)]
    with backend("autoregressive")(str(tiny_model), threads=1) as plain:
        assert together == [plain.generate(chat, SAMPLING).text for chat in chats]
    assert llm.chat(chats[0], SAMPLING)[0].text == together[0]


def test_equal_prompts_have_different_reproducible_samples(llm: LLM) -> None:
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=3)
    drawn = [answer.token_ids for answer in llm.generate(["ab"] * 4, sampling)]
    assert len(set(map(tuple, drawn))) > 1
    assert [answer.token_ids for answer in llm.generate(["ab"] * 4, sampling)] == drawn


def test_streams_yield_pieces_and_can_be_closed(llm: LLM) -> None:
    assert "".join(llm.stream("ab ab", SAMPLING)) == llm.generate("ab ab", SAMPLING)[0].text
    stream = llm.stream("ab ab", SamplingParams(max_tokens=400))
    next(stream)
    stream.close()
    assert llm._engine.occupancy().sequences == 0
    assert not [thread for thread in threading.enumerate() if "_answer" in thread.name]


@pytest.mark.parametrize("prompt", ["", [], [10**6]])
def test_an_unanswerable_prompt_is_an_error(llm: LLM, prompt: object) -> None:
    with pytest.raises(AnswerError, match="at least one token"):
        llm.generate([prompt, "ab"] if prompt != [] else [prompt], SAMPLING)  # type: ignore[arg-type]
    assert llm.generate("ab", SAMPLING)[0].completion_tokens


def test_unknown_options_and_methods_are_rejected(tiny_model: Path) -> None:
    with pytest.raises(UserError, match="unknown method 'eagel'"):
        LLM(str(tiny_model), method="eagel")
    with pytest.raises(UserError, match="unknown engine"):
        LLM(str(tiny_model), engine="cuda")
    assert not hasattr(ianvs_specdec, "nothing")
