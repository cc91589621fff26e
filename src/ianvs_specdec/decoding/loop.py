"""Speculative decoding: the loop. Autoregressive decoding is the same loop with drafts of no tokens."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ianvs_specdec.decoding import acceptance
from ianvs_specdec.decoding.acceptance import Verdict
from ianvs_specdec.decoding.confidence import Confidence
from ianvs_specdec.decoding.contracts import Context, Drafter, Length, Observation, Stats, Target
from ianvs_specdec.decoding.sampling import Noise
from ianvs_specdec.decoding.stopping import OutputIds, Stop
from ianvs_specdec.decoding.tree import TokenTree
from ianvs_specdec.errors import UserError
from ianvs_specdec.types import REJECTED_SHOWN, Sampling, Step, Trace

NEAR_TIE = 1e-3


class ContextWindowError(UserError, ValueError):
    """The prompt leaves no room for output in the target's context window."""


@dataclass
class Decoded:
    """``token_ids`` is the output without the prompt, with the end-of-sequence token that ended it, if one did.

    ``finish_reason`` is ``"stop"`` or ``"length"``; the latter also when the context window is full before
    ``max_tokens``.
    """

    token_ids: list[int]
    finish_reason: str
    trace: Trace


@torch.inference_mode()
def decode(
    target: Target,
    drafter: Drafter,
    length: Length,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    *,
    eos_ids: Iterable[int],
    stop: Stop | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
    trace_trees: list[TokenTree] | None = None,
    rule: str = "rejection",
    prediction: Sequence[int] = (),
    task: str = "",
) -> Decoded:
    """Continue ``prompt_ids`` losslessly: the output is the target's own, whatever the drafter proposes.

    ``rule`` is how sampled tokens are accepted, one of ``acceptance.RULES``; ``prediction`` and ``task`` are handed to
    drafter and length (see ``Context``).

    ``stop`` is asked after every emission how many output ids to keep (see ``stopping``). ``on_tokens`` receives the
    new ids at the moment they are final, one call per chunk of the trace. ``trace_trees`` collects the verified trees.

    Raises ``ContextWindowError`` for a prompt that fills the target's context window.
    """
    started = time.perf_counter()
    generator = torch.Generator(target.device).manual_seed(sampling.seed)
    features = drafter.prepare(target)
    output = OutputIds(_token_limit(target, prompt_ids, sampling), eos_ids, stop)
    rooted = drafter.roots_in_prompt and len(prompt_ids) > 1
    prefill = target.prefill(prompt_ids[:-1] if rooted else prompt_ids, features)
    coupled = rule == "coupled" and not sampling.greedy
    noise = Noise(sampling.seed, prefill.logits.shape[-1], target.device) if coupled else None
    accept = acceptance.create(sampling, prompt_ids, generator, rule, noise)
    trace = Trace()
    confidence = Confidence() if sampling.logprobs else None
    context = Context(
        list(prompt_ids), len(prompt_ids), output.remaining, sampling, generator, noise, 0.0, prediction, task
    )
    stats = Stats(len(context.tokens), task, output.remaining)

    def emit(tree: TokenTree, verdict: Verdict, logits: Tensor) -> int:
        tokens = [*(tree.tokens[node] for node in verdict.path[1:]), verdict.token]
        position = len(output.ids)
        emitted = output.add(tokens)
        trace.near_ties += [(position + i, gap) for i, gap in enumerate(verdict.gaps[: len(emitted)]) if gap < NEAR_TIE]
        if confidence is not None:
            confidence.add(logits[verdict.path], tokens)
        context.tokens += emitted
        context.remaining = stats.remaining = output.remaining
        stats.context_tokens = len(context.tokens)
        if emitted:
            trace.chunks.append((time.perf_counter() - started, len(emitted)))
            if on_tokens is not None:
                on_tokens(emitted)
        return len(emitted)

    if not rooted:
        root = TokenTree.chain(context.tokens[-1])
        emit(root, accept(root, prefill.logits), prefill.logits)
    if output.finish_reason is None:
        drafter.begin(target, context, prefill)

    while output.finish_reason is None:
        asked = time.perf_counter()
        budget, context.confidence = length.budget(stats), length.confidence
        tree = _propose(drafter, context, budget, target.window)
        proposed = time.perf_counter()
        verified = target.verify(tree)
        verdict = accept(tree, verified.logits)
        judged = time.perf_counter()
        emitted = emit(tree, verdict, verified.logits)
        trace.steps.append(Step(len(tree) - 1 - len(tree.scouts), len(verdict.path) - 1, emitted, len(tree)))
        trace.rejected.append(tree.continuation(verdict.path[-1], REJECTED_SHOWN))
        if trace_trees is not None:
            trace_trees.append(tree)
        if output.finish_reason is None:
            told = time.perf_counter()
            target.commit(verdict.path)
            committed = time.perf_counter()
            drafter.observe(Observation(tree, verified, verdict.path, verdict.token))
            stats.steps.append(trace.steps[-1])
            stats.budgets.append(budget)
            stats.depths.append(tree.depth)
            stats.verify_seconds.append(judged - proposed + committed - told)
            stats.draft_seconds.append(proposed - asked + time.perf_counter() - committed)

    if confidence is not None:
        trace.confidence = confidence.triples(len(output.ids))
    return Decoded(output.ids, output.finish_reason, trace)


def _propose(drafter: Drafter, context: Context, budget: int, window: int | None) -> TokenTree:
    """The drafter's tree, within the budget and the context window."""
    if budget <= 0:
        return TokenTree.chain(context.tokens[-1])
    tree = drafter.propose(context, budget)
    if window is not None and len(context.tokens) + len(tree) - 1 > window:
        return tree.truncated(window - len(context.tokens))
    return tree


def _token_limit(target: Target, prompt_ids: Sequence[int], sampling: Sampling) -> int:
    if not prompt_ids:
        raise ValueError("the prompt is empty: a causal LM needs at least one token to continue")
    if target.window is None:
        return sampling.max_tokens
    room = target.window - len(prompt_ids)
    if room < 1:
        raise ContextWindowError(
            f"the prompt has {len(prompt_ids)} tokens, the model's context window {target.window}: "
            "shorten the prompt or use a model with a longer window"
        )
    return min(room, sampling.max_tokens)
