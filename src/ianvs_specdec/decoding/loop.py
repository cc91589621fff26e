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
from ianvs_specdec.errors import ContextWindowError
from ianvs_specdec.types import REJECTED_SHOWN, Sampling, Step, Trace


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
    output = OutputIds(_token_limit(target, prompt_ids, sampling), eos_ids, stop)
    generator = torch.Generator(target.device).manual_seed(sampling.seed)
    context = Context(
        list(prompt_ids), len(prompt_ids), output.remaining, sampling, generator, prediction=prediction, task=task
    )
    request = _Request(target, drafter, length, context, output, on_tokens, trace_trees)
    request.begin(rule)
    while output.finish_reason is None:
        request.step()
    return Decoded(output.ids, output.finish_reason, request.record())


class _Request:
    """One request under way: ``begin``, then a ``step`` at a time until its output has a finish reason."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        length: Length,
        context: Context,
        output: OutputIds,
        on_tokens: Callable[[list[int]], None] | None,
        trace_trees: list[TokenTree] | None,
    ) -> None:
        self._began = time.perf_counter()
        self._target, self._drafter, self._length = target, drafter, length
        self._context, self._output = context, output
        self._on_tokens, self._trace_trees = on_tokens, trace_trees
        self._stats = Stats(len(context.tokens), context.task, output.remaining)
        self._confidence = Confidence() if context.sampling.logprobs else None
        self._trace = Trace()
        # Scores of sampled tokens are log-probabilities: logits over the temperature.
        self._near_tie = target.near_tie / (1.0 if context.sampling.greedy else context.sampling.temperature)

    def begin(self, rule: str) -> None:
        """Read the prompt. The first token comes of it, unless the first tree is rooted in the prompt."""
        target, drafter, context = self._target, self._drafter, self._context
        prompt, sampling = list(context.tokens), context.sampling
        features = drafter.prepare(target)
        rooted = drafter.roots_in_prompt and len(prompt) > 1
        prefill = target.prefill(prompt[:-1] if rooted else prompt, features)
        if rule == "coupled" and not sampling.greedy:
            context.noise = Noise(sampling.seed, prefill.logits.shape[-1], target.device)
        self._accept = acceptance.create(sampling, prompt, context.generator, rule, context.noise)
        if not rooted:
            root = TokenTree.chain(prompt[-1])
            self._emit(root, self._accept(root, prefill.logits), prefill.logits)
        if self._output.finish_reason is None:
            drafter.begin(target, context, prefill)

    def step(self) -> None:
        """Draft, verify, accept, emit; then tell the drafter and the length what came of it."""
        watch = _Stopwatch()
        budget = self._length.budget(self._stats)
        self._context.confidence = self._length.confidence
        tree = self._propose(budget)
        drafting = watch.lap()
        verified = self._target.verify(tree)
        verdict = self._accept(tree, verified.logits)
        verifying = watch.lap()
        emitted = self._emit(tree, verdict, verified.logits)
        # What comes behind the end of the output was drafted, but is of no use.
        accepted = min(len(verdict.path) - 1, emitted)
        step = Step(len(tree) - 1 - len(tree.scouts), accepted, emitted, len(tree))
        self._trace.steps.append(step)
        self._trace.rejected.append(tree.continuation(verdict.path[-1], REJECTED_SHOWN))
        if self._trace_trees is not None:
            self._trace_trees.append(tree)
        if self._output.finish_reason is None:
            watch.lap()  # emitting is neither drafting nor verifying
            self._target.commit(verdict.path)
            verifying += watch.lap()
            self._drafter.observe(Observation(tree, verified, verdict.path, verdict.token))
            drafting += watch.lap()
            self._stats.add(step, budget, tree.depth, drafting, verifying)

    def record(self) -> Trace:
        """How the request went, once it has ended."""
        if self._confidence is not None:
            self._trace.confidence = self._confidence.triples(len(self._output.ids))
        return self._trace

    def _propose(self, budget: int) -> TokenTree:
        """The drafter's tree, within the budget and what the target can address."""
        tokens, reach = self._context.tokens, self._target.reach
        if budget <= 0:
            return TokenTree.chain(tokens[-1])
        tree = self._drafter.propose(self._context, budget)
        if reach is not None and len(tokens) + len(tree) - 1 > reach:
            return tree.truncated(reach - len(tokens))
        return tree

    def _emit(self, tree: TokenTree, verdict: Verdict, logits: Tensor) -> int:
        """Put out what was accepted, as far as it belongs to the output; returns how many tokens that are."""
        tokens = [*(tree.tokens[node] for node in verdict.path[1:]), verdict.token]
        output, context, trace = self._output, self._context, self._trace
        position = len(output.ids)
        emitted = output.add(tokens)
        gaps = enumerate(verdict.gaps[: len(emitted)], start=position)
        trace.near_ties += [(place, gap) for place, gap in gaps if gap < self._near_tie]
        if self._confidence is not None:
            self._confidence.add(logits[verdict.path], tokens)
        context.tokens += emitted
        context.remaining = self._stats.remaining = output.remaining
        self._stats.context_tokens = len(context.tokens)
        if emitted:
            trace.chunks.append((time.perf_counter() - self._began, len(emitted)))
            if self._on_tokens is not None:
                self._on_tokens(emitted)
        return len(emitted)


class _Stopwatch:
    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the lap before."""
        before, self._since = self._since, time.perf_counter()
        return self._since - before


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
