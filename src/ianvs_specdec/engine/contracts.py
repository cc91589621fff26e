"""The interfaces of targets and drafters. That of speculation lengths is in ``length``."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.engine.tree import TokenTree


@dataclass
class Output:
    """Result of a target step for one sequence.

    ``logits`` has shape ``[nodes, vocabulary]``; the last chunk of a prompt has one row, for its last position, earlier
    chunks none. ``hidden`` has one tensor ``[rows, hidden]`` per feature that the sequence was opened with, one row per
    token. ``chosen``, of a target on another machine, has the token it selected after each row; the logits are on
    torch's device "meta" then.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    chosen: Sequence[int] | None = None


@dataclass(frozen=True)
class PromptChunk:
    """Consecutive tokens of a prompt. ``last``: the prompt ends with them."""

    tokens: Sequence[int]
    last: bool = True


StepInput = PromptChunk | TokenTree
"""What a step computes for one sequence."""


def prompt_chunks(tokens: Sequence[int], rows: int | None) -> Iterator[PromptChunk]:
    """Split a prompt into chunks of at most ``rows`` tokens, None = one chunk."""
    size = rows or len(tokens)
    for start in range(0, len(tokens), size):
        yield PromptChunk(tokens[start : start + size], last=start + size >= len(tokens))


class SequenceState(Protocol):
    """The state of one sequence in a target. It does not contain the root of a verified tree before ``commit``."""

    @property
    def position_limit(self) -> int | None:
        """Number of positions the next step can address; None = unlimited. Less than the target's window if the model
        recomputes all positions beyond it."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of the last verified tree on ``path`` (root first), drop the others."""

    def snapshot(self) -> Any:
        """The state, for ``restore``; only valid if everything verified is committed."""

    def restore(self, snapshot: Any) -> None:
        """Return to an earlier state, any number of times."""

    def close(self) -> None:
        """Free the memory. The sequence cannot be used any more. Closing twice is allowed."""


class Target(Protocol):
    """A causal LM that computes steps of many sequences at once."""

    @property
    def kind(self) -> str:
        """Name of the implementation, for records of measurements."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def window(self) -> int | None:
        """Number of positions that the model can address; None = unlimited."""

    @property
    def prompt_rows(self) -> int | None:
        """Maximum number of prompt tokens per step, None = unlimited. Longer prompts are split."""

    @property
    def near_tie(self) -> float:
        """Difference of logits below which rounding may change their order (see ``rounding``); 0 if it never does."""

    @property
    def layers(self) -> int:
        """Number of layers."""

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary."""

    @property
    def weights(self) -> Sequence[Any]:
        """The objects that hold the weights, without sequence states (see ``memory.tensor_bytes``)."""

    @property
    def embedding(self) -> Tensor:
        """The input embeddings ``[vocabulary, hidden]``, for drafters that share them."""

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits ``[rows, vocabulary]`` of hidden states ``[rows, hidden]`` after the final norm."""

    def warm_up(self, tokens: int) -> None:
        """Do one-time work for prompts of ``tokens`` tokens, such as compiling kernels for their shape, so that the
        first request is not charged for it."""

    def memory(self, positions: int) -> int:
        """Maximum size in bytes of a sequence of ``positions`` tokens."""

    def open(self, features: Sequence[int] = ()) -> SequenceState:
        """A new, empty sequence.

        ``features`` are indices into Hugging Face's ``hidden_states`` (0 = embeddings, -1 = the last hidden state after
        the final norm); every output of the sequence contains them.
        """

    def step(self, parts: Sequence[tuple[SequenceState, StepInput]]) -> list[Output]:
        """Compute one input for each of several different sequences.

        Prompt tokens are added to the sequence. Logits and hidden states of a tree's node are those of decoding its
        path from the root token by token. After an exception these sequences cannot be used any more.
        """


@dataclass
class Context:
    """A request as its drafter sees it, updated by the loop.

    ``tokens`` are prompt and output; the last one is the root of the next tree. At most ``remaining`` more tokens will
    be emitted. Random drafts use ``generator``; with ``noise`` (coupled sampling) the drafter selects with that noise
    instead, as the target does.

    ``confidence``: stop drafting where the probability that the whole path is accepted falls below it. ``prediction``
    is the text that the user expects. ``task`` is the kind of request.
    """

    tokens: list[int]
    prompt_tokens: int
    remaining: int
    sampling: Sampling
    generator: torch.Generator
    noise: Noise | None = None
    confidence: float = 0.0
    prediction: Sequence[int] = ()
    task: str = ""


@dataclass
class Observation:
    """A verified step: the tree, the target's output for it, the accepted path (root first) and the token after it."""

    tree: TokenTree
    output: Output
    path: list[int]
    token: int


class Continuations(Protocol):
    """A growing tree of proposed continuations of a context. Node 0 is the last token of the context."""

    def grow(self, nodes: Sequence[int]) -> list[list[tuple[int, float]]]:
        """Compute the likeliest next tokens after each of ``nodes`` in one step of a model: for each node (token,
        probability given its path) with the likeliest first, or nothing. They become the next nodes of the tree, in
        this order. Each node is grown once, after its parent."""


class Drafter:
    """Proposes the next tokens. A wrong proposal costs time, never correctness.

    One instance serves one request at a time; ``fork`` creates more. Subclasses override ``propose`` and what else they
    need.
    """

    roots_in_prompt: bool = False
    """Whether the first tree is rooted at the last token of the prompt, so that the first output token also comes from
    a verification step (except after prompts of one token)."""

    remote: bool = False
    """Whether drafts come from another machine, asynchronously, and take no time here."""
    ready: bool = True
    """Whether the request takes part in the next step; only a remote drafter may set this to False."""

    supports_continuations: bool = False
    """Whether ``continuations`` is implemented, so that an edge can draft ahead during verification."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "propose" in vars(cls) and "propose_all" not in vars(cls):
            cls.batch_key = vars(cls).get("batch_key")  # type: ignore[assignment]

    def continuations(self, context: Context) -> Continuations:
        """Continuations of ``context``. Valid until the next call of ``continuations`` or ``propose``, by which the
        context may have changed in any way."""
        raise NotImplementedError(f"{type(self).__name__} drafts whole trees only")

    @property
    def batch_key(self) -> Any:
        """The object, such as a model or a head, that drafters must share to draft in the same steps; None: each drafts
        alone. Reset to None in subclasses that override only ``propose``."""
        return None

    @property
    def unread_tokens(self) -> int:
        """Tokens of the request that the drafter must read before it can draft; a length counts that time."""
        return 0

    def prepare(self, target: Target) -> Sequence[int]:
        """Called before every request: load and check what depends on the target. Returns the indices of the target's
        hidden states that the drafter reads (see ``Target.open``).

        Raises ``UserError`` if the drafter does not fit the target.
        """
        return ()

    def fork(self) -> Drafter:
        """A prepared drafter for one more concurrent request. Forks share what persists between requests; ``begin``
        creates the state of a request."""
        return copy.copy(self)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        """Start a request: the target has read the prompt, and ``context.tokens`` ends with the root of the first
        tree."""

    def weights(self) -> Sequence[Any]:
        """The objects that hold weights or a datastore, without the state of a request (see
        ``memory.tensor_bytes``)."""
        return (self,)

    def memory(self, positions: int) -> int:
        """Maximum size in bytes of one request's state for ``positions`` tokens; 0 if negligible or not prepared."""
        return 0

    def propose(self, context: Context, budget: int) -> TokenTree:
        """A tree rooted at ``context.tokens[-1]`` with at most ``budget`` (>= 1) further acceptable nodes; only the
        root = no draft."""
        (tree,) = self.propose_all([(self, context, budget)])
        if isinstance(tree, Exception):
            raise tree
        return tree

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[Self, Context, int]]) -> Sequence[TokenTree | Exception]:
        """``propose`` for several requests with a common ``batch_key``, given as (drafter, context, budget), in the
        same steps of a model. An exception in place of a tree ends that request only."""
        raise NotImplementedError

    def observe(self, observation: Observation) -> None:
        """Called after every step that did not end the request, with ``context`` already updated."""

    def end(self) -> None:
        """End the request and free its memory. Also called if ``begin`` was not."""
