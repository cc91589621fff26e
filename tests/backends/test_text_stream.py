"""Text in pieces is the text as a whole, no character split, however the tokens come; and a long one costs no more."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ianvs_specdec.backends.prompts import Chat, TextStream
from ianvs_specdec.common.errors import RequestCancelledError
from ianvs_specdec.common.types import Hints, Sampling
from ianvs_specdec.engine.stopping import StopStrings

TEXT = "Zoë paid 5 € for 😀😀, a naïve été at the café. " * 8


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


def test_a_text_is_encoded_once_and_only_while_it_is_wanted(tokenizer: Any) -> None:
    encoded = list[str]()

    class Counting:
        chat_template = ""

        def __call__(self, text: str, **options: Any) -> Any:
            encoded.append(text)
            return tokenizer(text, **options)

    chat = Chat(Counting(), None)
    first = chat.encoded(TEXT, Sampling())
    first.append(0)
    assert chat.encoded(TEXT, Sampling()) == first[:-1]
    with pytest.raises(RequestCancelledError):
        chat.encoded("another", Sampling(), Hints(cancelled=lambda: True))
    assert encoded == [TEXT]


def streamed(tokenizer: Any, ids: list[int], stop: tuple[str, ...], sizes: random.Random) -> tuple[list[Any], str, int]:
    """Pieces with their tokens, the whole text, and the most ids that were decoded at once."""
    pieces: list[Any] = []
    longest = 0

    def decode(some: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(some))
        return str(tokenizer.decode(some, skip_special_tokens=True))

    stream = TextStream(decode, stop, lambda piece, tokens: pieces.append((piece, tokens)))
    place = 0
    while place < len(ids):
        size = sizes.randint(1, 5)
        stream(ids[place : place + size])
        place += size
    text = StopStrings(decode, stop).trim(tokenizer.decode(ids, skip_special_tokens=True))
    seen = longest
    stream.finish(text)
    return pieces, text, seen


@pytest.mark.parametrize("stop", [(), ("😀😀, a",), ("not there", "nor this")])
@pytest.mark.parametrize("seed", range(3))
def test_pieces_are_the_text_and_split_no_character(tokenizer: Any, stop: tuple[str, ...], seed: int) -> None:
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    if "😀😀, a" in stop:
        finds = StopStrings(lambda some: str(tokenizer.decode(some)), stop)
        ids = ids[: next(end for end in range(len(ids)) if finds(ids[:end]) is not None)]
    pieces, text, longest = streamed(tokenizer, ids, stop, random.Random(seed))
    assert "".join(piece for piece, _ in pieces) == text
    assert not any("\ufffd" in piece for piece, _ in pieces)
    assert sum(tokens for _, tokens in pieces) == len(ids)
    assert len(pieces) > len(ids) / 10, "it comes piece by piece"
    assert longest < 50, "what is settled is not decoded again"


@pytest.mark.parametrize("seed", range(3))
def test_bytes_that_make_no_character_are_told_as_they_are_at_the_end(tokenizer: Any, seed: int) -> None:
    chance = random.Random(seed)
    ids = [chance.randrange(len(tokenizer)) for _ in range(300)]
    pieces, text, _ = streamed(tokenizer, ids, (), chance)
    assert "".join(piece for piece, _ in pieces) == text


@pytest.mark.parametrize("kind", ["never a character", "no text"])
def test_what_never_gets_a_text_costs_no_more(tokenizer: Any, kind: str) -> None:
    """A byte that only begins characters, again and again, and the end token where it does not end the answer."""
    euro = tokenizer("€", add_special_tokens=False)["input_ids"]
    token = euro[0] if kind == "never a character" else tokenizer.eos_token_id
    ids = [*euro[:2], *[token] * 500, *euro, *tokenizer(" a", add_special_tokens=False)["input_ids"]]
    for stop in ((), ("not there",)):
        pieces, text, longest = streamed(tokenizer, ids, stop, random.Random(0))
        assert "".join(piece for piece, _ in pieces) == text
        assert longest < 50
        if kind == "never a character":
            assert len(pieces) > 20, "it is told as it comes"
    finds = StopStrings(lambda some: str(tokenizer.decode(some, skip_special_tokens=True)), ("€ a",))
    assert next(end for end in range(len(ids) + 1) if finds(ids[:end]) is not None) == len(ids)
