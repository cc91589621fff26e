"""Thoughts in a text that arrives in pieces: the same parts however it is cut, and the answer that is scored."""

from __future__ import annotations

import itertools
import random

import pytest

from ianvs_specdec.benchmarks.thoughts import without_thoughts
from ianvs_specdec.serving.thoughts import ThoughtStream

CHANNEL = "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>"


@pytest.mark.parametrize(
    ("text", "thought", "answer"),
    [
        ("<think>\nhm\n</think>\n\nB. Haja", "hm", "B. Haja"),
        ('\n<think>hm "B"</think>B <think> c', 'hm "B"', "\nB <think> c"),
        ("<think>a\n\n\nb\r\n\n</think>\nB", "a\n\n\nb", "B"),
        ("<think></think>\n\nB", "", "B"),
        ("<think>I close with '</think>' or `<think>`</think>B", "I close with '</think>' or `<think>`", "B"),
        ("<think>f'</think>' or \u8bf4`</think>`", "f'</think>' or \u8bf4`</think>`", ""),
        ("<think>no end\n", "no end\n", ""),
        ("[THINK]x[/THINK]y", "x", "y"),
        ("\u25c1think\u25b7x\u25c1/think\u25b7y", "x", "y"),
        (f"{CHANNEL}commentary<|message|>c<|end|><|start|>assistant<|channel|>final<|message|>B", "a < bc", "B"),
        ("<|channel|>final<|constrain|>json<|message|>{}", "", "{}"),
        ("</think>B", "", "B"),
        ("<b>bold</b> <think>", "", "<b>bold</b> <think>"),
        ("`<think>` opens a thought", "", "`<think>` opens a thought"),
        ("", "", ""),
    ],
)
def test_parts_are_the_same_however_a_text_is_cut(text: str, thought: str, answer: str) -> None:
    choice = random.Random(0)
    for attempt in range(200):
        cuts = sorted(choice.choices(range(len(text) + 1), k=attempt // 10)) if attempt else range(len(text))
        places = [0, *cuts, len(text)]
        stream = ThoughtStream()
        parts = [stream(text[start:end]) for start, end in itertools.pairwise(places)]
        parts.append(stream("", last=True))
        assert ["".join(part) for part in zip(*parts, strict=True)] == [thought, answer], cuts


def test_a_quotation_before_an_end_is_closed_for_scorers_too() -> None:
    assert without_thoughts('<think>He said "no."</think>"No"') == '"No"'


def test_plain_answers_do_not_wait() -> None:
    for first in ("A", "Here", "The", "1", '"', "\u00e9", " ", "\n\n"):
        assert ThoughtStream()(first) == ("", first)


@pytest.mark.parametrize("piece", ["\n", "\r\n", "<", "a", '"', "<|", "<|end|>"])
def test_a_long_thought_takes_no_longer_for_each_piece(piece: str) -> None:
    stream = ThoughtStream()
    stream("<think>x")
    for _ in range(10_000):
        stream(piece)
    assert stream("y</think>B", last=True)[1] == "B"
