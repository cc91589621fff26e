"""How long an output is at least: tokens that end it are none of its first, or end nothing, whatever is drafted."""

from __future__ import annotations

import random

import pytest
import torch

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import validated
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import decode
from ianvs_specdec.engine.acceptance import RULES
from ianvs_specdec.engine.stopping import OutputIds, StopStrings
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.requests import PROMPTS, target_of_kind
from tests.support.tiny import VOCABULARY, Guesser, tiny_model

PIECES = ["a", "b", "ab", "\n", "\n\n", " a", "END", "E", "N", "D", "."]


def text_of(ids):
    return "".join(PIECES[i] for i in ids)


def first_stop(ids, strings):
    for end in range(1, len(ids) + 1):
        if any(s in text_of(ids[:end]) for s in strings):
            return end
    return None


def test_the_first_completing_token_is_found_however_the_output_arrives():
    rng = random.Random(0)
    strings = ("END", "b\n", "a a")
    found = 0
    for _ in range(300):
        ids = [rng.randrange(len(PIECES)) for _ in range(20)]
        stop, end, kept = StopStrings(text_of, strings), 0, None
        while kept is None and end < len(ids):
            end = min(len(ids), end + rng.randrange(1, 6))
            kept = stop(ids[:end])
        assert kept == first_stop(ids, strings)
        if kept is not None:
            found += 1
            text = text_of(ids[:kept])
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


TOKENS = 24
PROMPT = PROMPTS[0]
PLAIN = (drafters.create("autoregressive"), lengths.create("fixed:0"))


def free(model):
    return decode(HuggingFaceTarget(model), *PLAIN, PROMPT, Sampling(max_tokens=TOKENS), eos_ids=[]).token_ids


@pytest.mark.parametrize("kind", ["native", "transformers"])
def test_no_end_is_among_the_first_as_with_transformers(kind):
    model = tiny_model()
    target, ends = target_of_kind(kind, model), free(model)[:3]
    asked = {"attention_mask": torch.ones(1, len(PROMPT)), "do_sample": False, "max_new_tokens": TOKENS}
    for least in (0, 1, 7, TOKENS):
        theirs = model.generate(
            torch.tensor([PROMPT]), min_new_tokens=least, eos_token_id=ends, pad_token_id=0, **asked
        )[0, len(PROMPT) :].tolist()
        sampling, known = Sampling(max_tokens=TOKENS, min_tokens=least), {"eos_ids": [-1, VOCABULARY, *ends]}
        assert decode(target, *PLAIN, PROMPT, sampling, **known).token_ids == theirs
        for seed in range(4):
            drafted = decode(target, Guesser(theirs, seed), lengths.create("fixed:9"), PROMPT, sampling, **known)
            assert drafted.token_ids == theirs
            assert any(step.accepted for step in drafted.trace.steps) or least < 2
        assert len(theirs) > least or least == TOKENS


@pytest.mark.parametrize("rule", RULES)
def test_no_sampled_end_is_among_the_first(rule):
    target = HuggingFaceTarget(tiny_model())
    ends = list(range(0, VOCABULARY, 2))
    for seed in range(8):
        sampling = Sampling(max_tokens=TOKENS, min_tokens=9, temperature=1.0, seed=seed)
        plain = decode(target, *PLAIN, PROMPT, sampling, eos_ids=ends, rule=rule)
        guesser = Guesser(plain.token_ids, seed)
        drafted = decode(target, guesser, lengths.create("fixed:9"), PROMPT, sampling, eos_ids=ends, rule=rule)
        for output in (plain.token_ids, drafted.token_ids):
            assert not set(output[:9]) & set(ends)
            assert output[-1] in ends or len(output) == TOKENS
        assert rule != "coupled" or drafted.token_ids == plain.token_ids


def test_ignored_ends_end_nothing():
    model = tiny_model()
    target, whole = HuggingFaceTarget(model), free(model)
    for seed in range(4):
        sampling = Sampling(max_tokens=TOKENS, min_tokens=seed * 5, ignore_eos=True)
        result = decode(target, Guesser(whole, seed), lengths.create("fixed:9"), PROMPT, sampling, eos_ids=whole[:5])
        assert (result.token_ids, result.finish_reason) == (whole, "length")


@pytest.mark.parametrize("least", [-1, 9])
def test_a_least_length_is_at_most_the_limit(least):
    with pytest.raises(UserError, match=r"^min_tokens must be ") as caught:
        validated(Sampling, {"max_tokens": 8, "min_tokens": least})
    assert caught.value.key == "min_tokens"
