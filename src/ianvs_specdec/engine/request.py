"""A request: it reads its prompt, then drafts, verifies and emits once per step until its output ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ianvs_specdec.common.errors import ContextWindowError, RequestCancelledError, UserError
from ianvs_specdec.common.types import MAX_REJECTED, Sampling, Step, Trace
from ianvs_specdec.engine import acceptance
from ianvs_specdec.engine.acceptance import Verdict
from ianvs_specdec.engine.confidence import Confidence
from ianvs_specdec.engine.contracts import (
    Context,
    Drafter,
    Observation,
    Output,
    PromptChunk,
    SequenceState,
    StepInput,
    Target,
)
from ianvs_specdec.engine.length import RequestStep, Stats
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.engine.stopping import OutputIds, Stop
from ianvs_specdec.engine.tree import TokenTree


@dataclass
class Decoded:
    """``token_ids`` is the output without the prompt, including an end-of-sequence token that ended it.

    ``finish_reason`` is ``"stop"`` or ``"length"``; the latter also if the context window is full.
    """

    token_ids: list[int]
    finish_reason: str
    trace: Trace


class Request:
    """A request of the engine. Its times start here and include waiting.

    ``rule`` is one of ``acceptance.RULES``; ``prediction`` and ``task`` are passed to drafter and length. ``stop``
    returns after every emission how many output ids to keep (see ``stopping``). ``on_tokens`` receives new ids as soon
    as they are final, one call per chunk of the trace. ``trace_trees`` collects the verified trees. ``cancelled`` is
    called before every step. ``top``: see ``Hints``.

    Raises ``ContextWindowError`` for a prompt that fills the context window, ``ValueError`` for one that is empty or
    has unknown tokens.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
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
        cancelled: Callable[[], bool] | None = None,
        top: int = 0,
    ) -> None:
        self._started = time.perf_counter()
        self.drafter = drafter
        self._target, self._rule = target, rule
        self._on_tokens, self._trace_trees = on_tokens, trace_trees
        self._confidence = Confidence(top) if sampling.logprobs else None
        self._ends = [] if sampling.ignore_eos else [token for token in eos_ids if 0 <= token < target.vocabulary]
        self._output = output = OutputIds(_token_limit(target, prompt_ids, sampling), self._ends, stop)
        generator = torch.Generator(target.device).manual_seed(sampling.seed)
        self.context = Context(
            list(prompt_ids), len(prompt_ids), output.remaining, sampling, generator, prediction=prediction, task=task
        )
        self.stats = Stats(len(prompt_ids), task, output.remaining)
        self._trace = Trace(drafting=None if drafter.remote else 0.0)
        # Sampled tokens are compared by log-probabilities: logits over the temperature.
        self._near_tie = target.near_tie / (1.0 if sampling.greedy else sampling.temperature)
        self.opened = False
        """Whether it has a sequence, which must be closed."""
        self.unread: list[int] = []
        """Prompt tokens that are still to be read."""
        self.decoding = False
        """Whether the prompt is read, so that steps verify trees."""
        self._read: list[tuple[Tensor, ...]] = []
        self._scored = 0
        """Prompt tokens whose confidence is recorded."""
        self._budget = 0
        self._cancelled = cancelled
        self.error: Exception | None = None
        """Why the request ended without a complete output."""

    @property
    def ended(self) -> bool:
        return self._output.finish_reason is not None or self.error is not None

    def end_if_cancelled(self) -> bool:
        """End it if it was cancelled. Returns whether it has ended."""
        if self.ended:
            return True
        try:
            if self._cancelled is not None and self._cancelled():
                self.error = RequestCancelledError()
        except Exception as error:
            self.error = error
        return self.error is not None

    def fail(self, error: Exception) -> None:
        """End with ``error``, unless there is an earlier one, which may be its cause."""
        self.error = self.error or error

    def cancel(self) -> None:
        """End at the engine's next step. Thread-safe."""
        self._cancelled = lambda: True

    @property
    def positions(self) -> int:
        return len(self.context.tokens) + self._output.remaining

    @property
    def memory(self) -> int:
        return self._target.memory(self.positions) + self.drafter.memory(self.positions)

    def result(self) -> Decoded:
        """The result. Raises the request's error if its output is incomplete."""
        if self.error is not None:
            raise self.error
        assert self._output.finish_reason is not None
        if self._confidence is not None:
            tokens = len(self._output.ids) + self._scored
            self._trace.confidence, self._trace.top = self._confidence.triples(tokens), self._confidence.top(tokens)
            self._trace.first = self._confidence.first()
        return Decoded(self._output.ids, self._output.finish_reason, self._trace)

    def warm_up(self) -> None:
        """Do one-time work (see ``Target.warm_up``) outside the request's time."""
        before = time.perf_counter()
        self._target.warm_up(len(self.context.tokens))
        self._started += time.perf_counter() - before

    def open(self) -> None:
        """Open a sequence of the target."""
        prompt = self.context.tokens
        features = self.drafter.prepare(self._target)
        self._rooted = self.drafter.roots_in_prompt and len(prompt) > 1
        self.unread = prompt[:-1] if self._rooted else prompt[:]
        self.sequence: SequenceState = self._target.open(features)
        self.opened = True

    def close(self) -> None:
        """Free the sequence and the drafter's state, if open."""
        self.sequence.close()
        self.drafter.end()

    def read(self) -> None:
        """Take the next prompt chunk. Chunk ends depend on the prompt alone, so that the results of targets that depend
        on them do not depend on other requests."""
        end = self._target.prompt_rows or len(self.unread)
        chunk, self.unread = self.unread[:end], self.unread[end:]
        self.step_input: StepInput = PromptChunk(chunk, last=not self.unread)

    def update_unread(self) -> None:
        self.stats.unread_tokens = self.drafter.unread_tokens

    def set_budget(self, budget: int, confidence: float) -> None:
        """Set the maximum draft of the next step, and the confidence at which drafting stops."""
        self._budget, self._unread_by_drafter = budget, self.stats.unread_tokens
        self.context.confidence = confidence

    def skip_draft(self) -> None:
        """Compute only the last token in the next step."""
        self.step_input = TokenTree.chain(self.context.tokens[-1])

    def draft(self, budget: int) -> None:
        self.set_tree(self.drafter.propose(self.context, budget))

    def set_tree(self, tree: TokenTree) -> None:
        """Verify ``tree`` in the next step, cut at the target's position limit.

        Raises ``UserError`` if it is no tree of the target's tokens, which would make the step fail for all requests.
        """
        limit, tokens = self.sequence.position_limit, self.context.tokens
        name = type(self.drafter).__name__
        if not isinstance(tree, TokenTree):
            raise UserError(f"{name}.propose must return a TokenTree, not {tree!r:.80}")
        try:
            tree.check(tokens[-1], self._target.vocabulary)
        except ValueError as error:
            raise UserError(f"drafter {name}: {error}") from error
        if limit is not None and len(tokens) + len(tree) - 1 > limit:
            tree = tree.truncated(limit - len(tokens))
        self.step_input = tree

    @property
    def drafted(self) -> int:
        """Draft tokens of the next step, without scouts."""
        return len(self.step_input) - 1 - len(self.step_input.scouts) if isinstance(self.step_input, TokenTree) else 0

    def accept(self, output: Output) -> None:
        """Take the output for ``step_input`` and judge the tree."""
        if isinstance(self.step_input, PromptChunk):
            self._take(self.step_input, output)
        else:
            self._decided = self.step_input, output, self._judge(self.step_input, output)

    def emit(self) -> RequestStep:
        """Emit the accepted tokens. Returns the request's part of the step."""
        tree, output, verdict = self._decided
        emitted = self._emit(tree, verdict, output.logits)
        # Tokens after the end of the output do not count as accepted.
        accepted = min(len(verdict.path) - 1, emitted)
        step = Step(len(tree) - 1 - len(tree.scouts), accepted, emitted, len(tree))
        self._trace.steps.append(step)
        self._trace.rejected.append(tree.continuation(verdict.path[-1], MAX_REJECTED))
        if self._trace_trees is not None:
            self._trace_trees.append(tree)
        return RequestStep(self.stats, self._budget, self._unread_by_drafter, tree.depth, step, self.ended)

    def commit(self) -> None:
        self.sequence.commit(self._decided[2].path)

    def observe(self) -> None:
        tree, output, verdict = self._decided
        self.drafter.observe(Observation(tree, output, verdict.path, verdict.token))

    def add_draft_seconds(self, seconds: float) -> None:
        self._trace.drafting = (self._trace.drafting or 0.0) + seconds

    def _take(self, chunk: PromptChunk, output: Output) -> None:
        self._read.append(output.hidden)
        if not chunk.last:
            return
        hidden = self._read[0] if len(self._read) == 1 else tuple(map(torch.cat, zip(*self._read, strict=True)))
        self._read.clear()
        self._begin(replace(output, hidden=hidden))

    def _begin(self, output: Output) -> None:
        """Emit the first token after the prompt, and start drafting."""
        context, sampling = self.context, self.context.sampling
        if self._rule == "coupled" and not sampling.greedy:
            context.noise = Noise(sampling.seed, output.logits.shape[-1], self._target.device)
        gaps = self._near_tie > 0
        self._accept = acceptance.create(sampling, context.tokens, context.generator, self._rule, context.noise, gaps)
        if not self._rooted:
            root = TokenTree.chain(context.tokens[-1])
            self._emit(root, self._judge(root, output), output.logits)
        self.drafter.begin(self._target, context, output)
        self.decoding = True

    def _judge(self, tree: TokenTree, output: Output) -> Verdict:
        if output.chosen is not None:
            return acceptance.follow(tree, output.chosen)
        logits = output.logits
        early = self.context.sampling.min_tokens - len(self._output.ids)
        if early > 0 and self._ends:
            logits = acceptance.without(self._ends, tree, logits, early)
        return self._accept(tree, logits)

    def _emit(self, tree: TokenTree, verdict: Verdict, logits: Tensor) -> int:
        """Emit the verdict's tokens up to the end of the output. Returns their number."""
        tokens = [*(tree.tokens[node] for node in verdict.path[1:]), verdict.token]
        output, context, trace = self._output, self.context, self._trace
        position = len(output.ids)
        if self._confidence is not None:
            self._confidence.add(logits[verdict.path], tokens)
        emitted = output.add(tokens)
        if verdict.gaps:
            gaps = enumerate(verdict.gaps[: len(emitted)], start=position)
            trace.near_ties += [(place, gap) for place, gap in gaps if gap < self._near_tie]
        context.tokens += emitted
        context.remaining = self.stats.remaining = output.remaining
        self.stats.context_tokens = len(context.tokens)
        if emitted:
            trace.chunks.append((time.perf_counter() - self._started, len(emitted)))
            if self._on_tokens is not None:
                self._on_tokens(emitted)
        return len(emitted)


def _token_limit(target: Target, prompt_ids: Sequence[int], sampling: Sampling) -> int:
    if not prompt_ids:
        raise ValueError("the prompt is empty: a causal LM needs at least one token to continue")
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < target.vocabulary:
        wrong = next(token for token in prompt_ids if not 0 <= token < target.vocabulary)
        raise ValueError(f"the prompt has token id {wrong}; the model's ids are 0 to {target.vocabulary - 1}")
    if target.window is None:
        return sampling.max_tokens
    room = target.window - len(prompt_ids)
    if room < 1:
        raise ContextWindowError(
            f"the prompt has {len(prompt_ids)} tokens, the model's context window {target.window}: "
            "shorten the prompt or use a model with a longer window"
        )
    return min(room, sampling.max_tokens)
