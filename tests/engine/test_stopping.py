from __future__ import annotations

import random

from ianvs_specdec.engine.stopping import OutputIds, StopStrings

PIECES = ["a", "b", "ab", "\n", "\n\n", " a", "END", "E", "N", "D", "."]


def decode(ids):
    return "".join(PIECES[i] for i in ids)


def first_stop(ids, strings):
    for end in range(1, len(ids) + 1):
        if any(s in decode(ids[:end]) for s in strings):
            return end
    return None


def test_the_first_completing_token_is_found_however_the_output_arrives():
    rng = random.Random(0)
    strings = ("END", "b\n", "a a")
    found = 0
    for _ in range(300):
        ids = [rng.randrange(len(PIECES)) for _ in range(20)]
        stop, end, kept = StopStrings(decode, strings), 0, None
        while kept is None and end < len(ids):
            end = min(len(ids), end + rng.randrange(1, 6))
            kept = stop(ids[:end])
        assert kept == first_stop(ids, strings)
        if kept is not None:
            found += 1
            text = decode(ids[:kept])
            assert stop.trim(text) == text[: min(text.index(s) for s in strings if s in text)]
    assert found > 50


def test_a_character_of_several_tokens_is_waited_for():
    data = "né END".encode()

    def decode_bytes(ids):
        return bytes(ids).decode(errors="replace")

    stop = StopStrings(decode_bytes, ("é E",))
    results = [stop(list(data[: i + 1])) for i in range(len(data))]
    assert results[: data.index(b"E")] == [None] * data.index(b"E")
    assert results[data.index(b"E")] == data.index(b"E") + 1


def test_a_text_is_cut_at_the_earliest_stop_string_and_left_whole_without_one():
    stop = StopStrings(str, ("cd", "bc"))
    assert [stop.trim(text) for text in ("abcd", "acdbc", "cd", "abd", "")] == ["a", "a", "", "abd", ""]


def test_the_earliest_end_wins():
    def after_two(ids):
        return 2 if len(ids) >= 2 else None

    cases = [
        ({"max_tokens": 9, "eos_ids": [7]}, [1, 2, 7, 3], [1, 2, 7], "stop"),
        ({"max_tokens": 9, "eos_ids": [7, 2]}, [1, 2, 7, 3], [1, 2], "stop"),
        ({"max_tokens": 2, "eos_ids": [7]}, [1, 2, 7], [1, 2], "length"),
        ({"max_tokens": 3, "eos_ids": [7]}, [1, 2, 7], [1, 2, 7], "stop"),
        ({"max_tokens": 3, "eos_ids": [7], "stop": after_two}, [1, 2, 7], [1, 2], "stop"),
        ({"max_tokens": 1, "eos_ids": [7], "stop": after_two}, [1, 2, 7], [1], "length"),
        ({"max_tokens": 9, "eos_ids": [7]}, [1, 2], [1, 2], None),
    ]
    for settings, tokens, kept, reason in cases:
        output = OutputIds(**settings)
        assert output.add(tokens) == kept
        assert (output.ids, output.finish_reason) == (kept, reason)


def test_a_special_token_does_not_swallow_the_space_after_it():
    """A tokenizer that drops the space at the beginning of a text must not do so behind a token without text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    pieces = ["▁a", "▁b", "▁END", "▁the", "END", "a", "b", "▁", "x", "▁x", "."]
    vocabulary = {piece: number for number, piece in enumerate(["<special>", "<unk>", *pieces])}
    raw = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    raw.decoder = decoders.Metaspace()
    raw.add_special_tokens([AddedToken("<special>", special=True)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw)

    def text(ids):
        return tokenizer.decode(ids, skip_special_tokens=True)

    strings, rng, found = (" END", "a b", "x.", "the a"), random.Random(0), 0
    for _ in range(300):
        ids = [rng.choice([0, *range(2, len(vocabulary))]) if rng.random() > 0.15 else 0 for _ in range(20)]
        ends = (end for end in range(1, 21) if any(string in text(ids[:end]) for string in strings))
        expected, stop = next(ends, None), StopStrings(text, strings)
        assert next((kept for end in range(1, 21) if (kept := stop(ids[:end]))), None) == expected
        found += expected is not None
    assert found > 200


def test_an_output_that_is_continued_stops_where_the_whole_would():
    text = lambda ids: "".join(chr(97 + i) for i in ids)  # noqa: E731
    ids = [0, 1, 2, 3, 4]
    for string in ("cd", "bcd", "e", "x"):
        whole, rest = StopStrings(text, [string])(ids), StopStrings(text, [string]).after(ids[:3])
        assert (rest(ids[3:]) or 99) + 3 == (whole or 102)
