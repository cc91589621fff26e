"""The loop: the target's own output whatever is drafted, cut exactly where it ends, with honest counts."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
from transformers import AutoTokenizer

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import ContextWindowError, Drafter, StopStrings, TokenTree, decode
from ianvs_specdec.engine.rounding import NEAR_TIE
from ianvs_specdec.targets.huggingface import HuggingFaceTarget
from tests.support.requests import KINDS, decoded, engine_of, request_of, results, target_of_kind
from tests.support.slow_cases import slow_unless
from tests.support.tiny import ARCHITECTURES, VOCABULARY, Guesser, tiny_model

NONE, FIXED_0 = drafters.create("autoregressive"), lengths.create("fixed:0")
PROMPT = [5, 9, 14, 3, 22, 9, 14, 31]
TOKENS = 28


def generated_by_transformers(model, prompt, tokens, **settings):
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        eos_token_id=settings.pop("eos_token_id", -1),
        pad_token_id=0,
        **settings,
    )
    return out[0, len(prompt) :].tolist()


def assert_counts_are_consistent(result, trees=None):
    trace = result.trace
    assert trace.tokens == len(result.token_ids)
    assert [n for _, n in trace.chunks] == [1, *(step.emitted for step in trace.steps)]
    times = [t for t, _ in trace.chunks]
    assert times == sorted(times)
    for step in trace.steps[:-1]:
        assert step.emitted == step.accepted + 1
    for step in trace.steps:
        assert 1 <= step.emitted <= step.accepted + 1 <= step.drafted + 1 == step.verified
    if trees is not None:
        assert [len(tree) for tree in trees] == [step.verified for step in trace.steps]


AS_CHAINS = {"llama", "gpt2", "mistral-sliding", "bloom", "mamba"}
SHAPES = slow_unless(
    itertools.product(ARCHITECTURES, ("chains", "trees")), lambda case: case[1] == "trees" or case[0] in AS_CHAINS
)


@pytest.mark.parametrize(("name", "shape"), SHAPES)
def test_greedy_output_is_the_targets_own(name, shape):
    model = tiny_model(name)
    expected = generated_by_transformers(model, PROMPT, TOKENS)
    target = HuggingFaceTarget(model)
    for seed in range(2):
        trees: list[TokenTree] = []
        guesser = Guesser(expected, seed, chains_only=shape == "chains")
        result = decoded(target, guesser, "fixed:6", PROMPT, Sampling(max_tokens=TOKENS), trace_trees=trees)
        assert result.token_ids == expected
        assert result.finish_reason == "length"
        assert_counts_are_consistent(result, trees)
        assert sum(step.accepted for step in result.trace.steps) > 5
        if name != "phi3-longrope":  # no step of it crosses the length at which its rotations change
            assert all(step.drafted == 6 for step in result.trace.steps)
    plain = decode(target, NONE, FIXED_0, PROMPT, Sampling(max_tokens=TOKENS), eos_ids=[])
    assert plain.token_ids == expected
    assert len(plain.trace.steps) == TOKENS - 1


def test_greedy_with_repetition_penalty_equals_transformers():
    model = tiny_model("qwen2")
    expected = generated_by_transformers(model, PROMPT, TOKENS, repetition_penalty=1.3)
    assert expected != generated_by_transformers(model, PROMPT, TOKENS)
    target = HuggingFaceTarget(model)
    sampling = Sampling(max_tokens=TOKENS, repetition_penalty=1.3)
    for drafter, length in ((NONE, FIXED_0), (Guesser(expected), lengths.create("fixed:8"))):
        assert decode(target, drafter, length, PROMPT, sampling, eos_ids=[]).token_ids == expected


def test_an_end_token_inside_a_draft_ends_the_output_there():
    model = tiny_model()
    free = generated_by_transformers(model, PROMPT, TOKENS)
    target = HuggingFaceTarget(model)
    for position in (0, 1, 7, 20):
        eos = free[position]
        end = free.index(eos) + 1
        for seed in range(4):
            result = decoded(
                target,
                Guesser(free, seed, chains_only=True),
                "fixed:9",
                PROMPT,
                Sampling(max_tokens=TOKENS),
                eos_ids=[VOCABULARY + 1, eos],
            )
            assert result.token_ids == free[:end]
            assert result.finish_reason == "stop"
            assert_counts_are_consistent(result)


@pytest.mark.parametrize("tokens", [1, 2, 3, 7])
def test_max_tokens_is_exact_inside_a_draft(tokens):
    model = tiny_model()
    free = generated_by_transformers(model, PROMPT, TOKENS)
    target = HuggingFaceTarget(model)
    for seed in range(4):
        result = decoded(target, Guesser(free, seed), "fixed:9", PROMPT, Sampling(max_tokens=tokens))
        assert (result.token_ids, result.finish_reason) == (free[:tokens], "length")
        assert_counts_are_consistent(result)


def test_a_stop_string_that_spans_tokens_ends_the_output_whatever_is_drafted():
    model = tiny_model()
    free = generated_by_transformers(model, PROMPT, TOKENS)

    def text(ids):
        return "".join(f"<{i}>" for i in ids)

    stop = text(free[4:7])[2:-2]
    kept = next(n for n in range(1, TOKENS) if stop in text(free[:n]))
    target = HuggingFaceTarget(model)
    for drafter, length in ((NONE, FIXED_0), (Guesser(free), lengths.create("fixed:9"))):
        stopping = StopStrings(text, [stop])
        result = decode(target, drafter, length, PROMPT, Sampling(max_tokens=TOKENS), eos_ids=[], stop=stopping)
        assert (result.token_ids, result.finish_reason) == (free[:kept], "stop")
        assert stopping.trim(text(result.token_ids)) == text(free)[: text(free).index(stop)]
        assert_counts_are_consistent(result)


def test_tokens_are_handed_over_chunk_by_chunk():
    model = tiny_model()
    free = generated_by_transformers(model, PROMPT, TOKENS)
    chunks: list[list[int]] = []
    result = decoded(
        HuggingFaceTarget(model), Guesser(free), "fixed:5", PROMPT, Sampling(max_tokens=TOKENS), on_tokens=chunks.append
    )
    assert [len(chunk) for chunk in chunks] == [n for _, n in result.trace.chunks]
    assert [token for chunk in chunks for token in chunk] == result.token_ids


@pytest.mark.parametrize(("apart", "near"), [(0, True), (1e-5, True), (1e-2, False)])
def test_near_ties_are_told_by_output_position(apart, near):
    """With two equal rows in the output layer the two tokens always tie; with similar ones they may come near it."""
    model = tiny_model(tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight[41] *= 3
        model.lm_head.weight[40] = (1 + apart) * model.lm_head.weight[41]
    free = generated_by_transformers(model, PROMPT, TOKENS)
    tied = [i for i, token in enumerate(free) if token in (40, 41)]
    assert tied
    for drafter, length in ((NONE, FIXED_0), (Guesser(free), lengths.create("fixed:5"))):
        result = decode(HuggingFaceTarget(model), drafter, length, PROMPT, Sampling(max_tokens=TOKENS), eos_ids=[])
        assert [position for position, _ in result.trace.near_ties] == (tied if near else [])
        assert all(gap < 1e-3 for _, gap in result.trace.near_ties)


def test_the_context_window_is_respected():
    model = tiny_model("gpt2", n_positions=20)  # learned positions: one too many is an error
    free = generated_by_transformers(model, PROMPT, 12)
    target = HuggingFaceTarget(model)
    for drafter in (Guesser(free), Guesser(free, chains_only=True)):
        result = decode(target, drafter, lengths.create("fixed:9"), PROMPT, Sampling(max_tokens=100), eos_ids=[])
        assert (result.token_ids, result.finish_reason) == (free, "length")
    for budget in (11, 12):  # after 8 tokens of prompt and one of output, 11 fill the window to the last
        guesser = Guesser(free, chains_only=True)
        result = decode(target, guesser, lengths.create(f"fixed:{budget}"), PROMPT, Sampling(), eos_ids=[])
        assert result.trace.steps[0].drafted == 11
    with pytest.raises(ContextWindowError, match=r"20 tokens.*window 20"):
        decode(target, NONE, FIXED_0, list(range(3, 23)), Sampling(), eos_ids=[])
    with pytest.raises(ValueError, match="empty"):
        decode(target, NONE, FIXED_0, [], Sampling(), eos_ids=[])


def test_sampling_is_a_function_of_the_seed():
    target = HuggingFaceTarget(tiny_model())
    lookup, length = drafters.create("prompt_lookup"), lengths.create("fixed:4")

    def sample(seed):
        sampling = Sampling(max_tokens=20, temperature=1.5, seed=seed)
        return decode(target, lookup, length, PROMPT, sampling, eos_ids=[]).token_ids

    assert sample(1) == sample(1)
    assert len({tuple(sample(seed)) for seed in range(5)}) > 1


@pytest.fixture(scope="module")
def reference_outputs(reference_model, mt_bench, shared):
    """The 24 shortest first turns of MT-Bench as token ids; what transformers says to each, all in one batch; and how
    far apart its two best logits were at each token."""
    tokenizer = AutoTokenizer.from_pretrained(shared / "reference" / "target")
    prompts = sorted((tokenizer(row["turns"][0]).input_ids for row in mt_bench), key=len)[:24]
    longest = len(prompts[-1])
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    said = reference_model.generate(
        padded,
        attention_mask=mask,
        max_new_tokens=48,
        do_sample=False,
        eos_token_id=2,
        pad_token_id=2,
        return_dict_in_generate=True,
        output_logits=True,
    )
    outputs = [row[: row.index(2) + 1 if 2 in row else None] for row in said.sequences[:, longest:].tolist()]
    best = torch.stack(said.logits, 1).topk(2).values
    return prompts, outputs, best[..., 0] - best[..., 1]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["autoregressive", "prompt_lookup"])
@pytest.mark.parametrize("kind", KINDS)
def test_lossless_on_mt_bench_with_the_reference_target(kind, method, reference_model, reference_outputs):
    """Float32: ours equals transformers; where not, only at two tokens that are closer than rounding can tell apart.
    The target that computes one request after another has a quarter of the prompts."""
    prompts, outputs, apart = (part[:: 4 if kind == "transformers" else 1] for part in reference_outputs)
    target, drafter = target_of_kind(kind, reference_model), drafters.create(method)
    settings = {"eos_ids": [2], "rule": "rejection"}
    requests = [request_of(target, prompt, Sampling(max_tokens=48), drafter.fork(), **settings) for prompt in prompts]
    found, accepted = results(engine_of(target, drafters.default_length(method)), *requests), 0
    for result, expected, gaps in zip(found, outputs, apart, strict=True):
        accepted += sum(step.accepted for step in result.trace.steps)
        if result.token_ids != expected:
            pairs = zip(result.token_ids, expected, strict=False)
            first = next(i for i, (got, wanted) in enumerate(pairs) if got != wanted)
            assert gaps[first] < NEAR_TIE[torch.float32]
            assert first in dict(result.trace.near_ties) or not target.near_tie
    assert accepted > 5 * len(prompts) or method == "autoregressive"


@pytest.mark.parametrize("tokens", [5, 7, 8])
def test_right_drafts_behind_the_last_token_are_not_accepted(tokens):
    step, emitted = the_only_step(max_tokens=tokens)
    assert (step.drafted, step.accepted, step.emitted) == (12, tokens - 1, tokens - 1)
    assert len(emitted) == tokens


def test_right_drafts_behind_a_stop_are_not_accepted():
    _, free = the_only_step(max_tokens=12)
    end = next(place for place, token in enumerate(free) if place > 2 and token not in free[:place])
    step, emitted = the_only_step(max_tokens=30, eos_ids=[free[end]])
    assert emitted == free[: end + 1]
    assert (step.drafted, step.accepted, step.emitted) == (12, end, end)


def test_a_trace_has_the_seconds_of_its_drafts():
    class Slow(Right):
        calls = 0

        def propose(self, context, budget):
            self.calls += 1
            time.sleep(0.01)
            return super().propose(context, budget)

    target, slow, sampling = HuggingFaceTarget(tiny_model()), Slow([1] * 20), Sampling(max_tokens=5)
    trace = decode(target, slow, lengths.create("fixed:2"), [5, 9], sampling, eos_ids=[]).trace
    assert 0.01 * slow.calls <= trace.drafting <= trace.latency
    alone = drafters.create("autoregressive")
    assert decode(target, alone, lengths.create("fixed:0"), [5, 9], sampling, eos_ids=[]).trace.drafting == 0.0


def the_only_step(max_tokens, eos_ids=()):
    """The step in which a draft of 12 right tokens is verified, and the output."""
    prompt, target = [5, 9, 14, 3, 22, 9, 14, 31], HuggingFaceTarget(tiny_model())
    alone = drafters.create("autoregressive")
    free = decode(target, alone, lengths.create("fixed:0"), prompt, Sampling(max_tokens=30), eos_ids=[]).token_ids
    limited = Sampling(max_tokens=max_tokens)
    result = decode(target, Right(free), lengths.create("fixed:12"), prompt, limited, eos_ids=eos_ids)
    (step,) = result.trace.steps
    return step, result.token_ids


class Right(Drafter):
    """Drafts what the target is known to say."""

    def __init__(self, continuation):
        self._continuation = continuation

    def propose(self, context, budget):
        done = len(context.tokens) - context.prompt_tokens
        return TokenTree.chain(context.tokens[-1], self._continuation[done : done + budget])
