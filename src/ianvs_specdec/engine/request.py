"""One request: its prompt is read, then it drafts, verifies and emits, a step at a time, until its output ends."""

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
    """``token_ids`` is the output without the prompt, with the end-of-sequence token that ended it, if one did.

    ``finish_reason`` is ``"stop"`` or ``"length"``; the latter also when the context window is full before
    ``max_tokens``.
    """

    token_ids: list[int]
    finish_reason: str
    trace: Trace


class Request:
    """One request under way. Its times count from here: waiting for others is part of its latency.

    ``rule`` is how sampled tokens are accepted, one of ``acceptance.RULES``; ``prediction`` and ``task`` are handed to
    drafter and length (see ``Context``, ``Stats``). ``stop`` is asked after every emission how many output ids to keep
    (see ``stopping``). ``on_tokens`` receives the new ids at the moment they are final, one call per chunk of the
    trace. ``trace_trees`` collects the verified trees. ``cancelled`` is asked before every step whether somebody still
    waits. ``top``: see ``Hints``.

    Raises ``ContextWindowError`` for a prompt that fills the target's context window, ``ValueError`` for one that is
    empty or has tokens that the target does not know.
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
        self._began = time.perf_counter()
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
        # Scores of sampled tokens are log-probabilities: logits over the temperature.
        self._near_tie = target.near_tie / (1.0 if sampling.greedy else sampling.temperature)
        self.opened = False
        """Whether it has a sequence, to be closed."""
        self.unread: list[int] = []
        """The remaining tokens of the prompt."""
        self.decoding = False
        """Whether the prompt is read, and trees are verified from now on."""
        self._read: list[tuple[Tensor, ...]] = []
        self._scored = 0
        """Tokens of the prompt whose confidence is recorded."""
        self._budget = 0
        self._cancelled = cancelled
        self.error: Exception | None = None
        """Why the request ended without a whole output."""

    @property
    def ended(self) -> bool:
        return self._output.finish_reason is not None or self.error is not None

    @property
    def over(self) -> bool:
        """Whether it has ended, or is to end because it was given up."""
        if self.ended:
            return True
        try:
            if self._cancelled is not None and self._cancelled():
                self.error = RequestCancelledError()
        except Exception as error:
            self.error = error
        return self.error is not None

    def fail(self, error: Exception) -> None:
        """It ends with ``error``, unless it has failed before: what comes behind the first error may come of it."""
        self.error = self.error or error

    def cancel(self) -> None:
        """Give it up, from any thread: it ends at the engine's next step."""
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
        """Have done what is done once in a process (see ``Target.warm_up``): that is no part of the request's time."""
        before = time.perf_counter()
        self._target.warm_up(len(self.context.tokens))
        self._began += time.perf_counter() - before

    def open(self) -> None:
        """Take a sequence of the target. The first token comes of the prompt, unless the first tree is rooted in it."""
        prompt = self.context.tokens
        features = self.drafter.prepare(self._target)
        self._rooted = self.drafter.roots_in_prompt and len(prompt) > 1
        self.unread = prompt[:-1] if self._rooted else prompt[:]
        self.sequence: SequenceState = self._target.open(features)
        self.opened = True

    def close(self) -> None:
        """Give back what the sequence and its drafts hold, once it is open."""
        self.sequence.close()
        self.drafter.end()

    def read(self) -> None:
        """The next step computes the next piece of the prompt. Where pieces end depends on the prompt alone, so that a
        target whose bits depend on it computes the same whoever else is served."""
        end = self._target.prompt_rows or len(self.unread)
        piece, self.unread = self.unread[:end], self.unread[end:]
        self.step_input: StepInput = PromptChunk(piece, last=not self.unread)

    def update_unread(self) -> None:
        self.stats.unread_tokens = self.drafter.unread_tokens

    def set_budget(self, budget: int, confidence: float) -> None:
        """The next step may verify so many drafted tokens, drafted as far as the drafter is so sure."""
        self._budget, self._behind = budget, self.stats.unread_tokens
        self.context.confidence = confidence

    def skip_draft(self) -> None:
        """The next step computes the last token alone."""
        self.step_input = TokenTree.chain(self.context.tokens[-1])

    def draft(self, budget: int) -> None:
        self.set_tree(self.drafter.propose(self.context, budget))

    def set_tree(self, tree: TokenTree) -> None:
        """The next step computes ``tree``, within what the target can address.

        Raises ``UserError`` for what is no tree of the target's tokens: computed, it would end the step of all others.
        """
        reach, tokens = self.sequence.position_limit, self.context.tokens
        name = type(self.drafter).__name__
        if not isinstance(tree, TokenTree):
            raise UserError(f"{name}.propose must return a TokenTree, not {tree!r:.80}")
        try:
            tree.check(tokens[-1], self._target.vocabulary)
        except ValueError as error:
            raise UserError(f"drafter {name}: {error}") from error
        if reach is not None and len(tokens) + len(tree) - 1 > reach:
            tree = tree.truncated(reach - len(tokens))
        self.step_input = tree

    @property
    def drafted(self) -> int:
        """Drafted tokens of the next step, without scouts."""
        return len(self.step_input) - 1 - len(self.step_input.scouts) if isinstance(self.step_input, TokenTree) else 0

    def accept(self, output: Output) -> None:
        """Take what the step computed for ``piece``, and decide what of it is right."""
        if isinstance(self.step_input, PromptChunk):
            self._take(self.step_input, output)
        else:
            self._decided = self.step_input, output, self._judge(self.step_input, output)

    def emit(self) -> RequestStep:
        """Put out what was accepted; returns what came of the step for this request."""
        tree, output, verdict = self._decided
        emitted = self._emit(tree, verdict, output.logits)
        # What comes behind the end of the output was drafted, but is of no use.
        accepted = min(len(verdict.path) - 1, emitted)
        step = Step(len(tree) - 1 - len(tree.scouts), accepted, emitted, len(tree))
        self._trace.steps.append(step)
        self._trace.rejected.append(tree.continuation(verdict.path[-1], MAX_REJECTED))
        if self._trace_trees is not None:
            self._trace_trees.append(tree)
        return RequestStep(self.stats, self._budget, self._behind, tree.depth, step, self.ended)

    def commit(self) -> None:
        self.sequence.commit(self._decided[2].path)

    def observe(self) -> None:
        tree, output, verdict = self._decided
        self.drafter.observe(Observation(tree, output, verdict.path, verdict.token))

    def add_draft_seconds(self, seconds: float) -> None:
        self._trace.drafting = (self._trace.drafting or 0.0) + seconds

    def _take(self, piece: PromptChunk, output: Output) -> None:
        self._read.append(output.hidden)
        if not piece.last:
            return
        hidden = self._read[0] if len(self._read) == 1 else tuple(map(torch.cat, zip(*self._read, strict=True)))
        self._read.clear()
        self._begin(replace(output, hidden=hidden))

    def _begin(self, output: Output) -> None:
        """The prompt is read: put out its first token, and begin to draft."""
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
        """Put out what was accepted, as far as it belongs to the output; returns how many tokens that are."""
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
            trace.chunks.append((time.perf_counter() - self._began, len(emitted)))
            if self._on_tokens is not None:
                self._on_tokens(emitted)
        return len(emitted)


def _token_limit(target: Target, prompt_ids: Sequence[int], sampling: Sampling) -> int:
    if not prompt_ids:
        raise ValueError("the prompt is empty: a causal LM needs at least one token to continue")
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < target.vocabulary:
        wrong = next(token for token in prompt_ids if not 0 <= token < target.vocabulary)
        raise ValueError(f"the prompt has the token {wrong}; those of the model are 0 to {target.vocabulary - 1}")
    if target.window is None:
        return sampling.max_tokens
    room = target.window - len(prompt_ids)
    if room < 1:
        raise ContextWindowError(
            f"the prompt has {len(prompt_ids)} tokens, the model's context window {target.window}: "
            "shorten the prompt or use a model with a longer window"
        )
    return min(room, sampling.max_tokens)
