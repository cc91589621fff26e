"""The interfaces of targets and drafters to the loop (that of speculation lengths: ``length``)."""

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
    """What one target step computed for one sequence.

    ``logits`` has shape ``[nodes, vocabulary]``; after the last piece of a prompt it has one row, for the last
    position, and after the pieces before it none. ``hidden`` holds one tensor ``[rows, hidden]`` per feature that the
    sequence was opened with, one row for every token of the step. ``chosen``, of a target that is partly elsewhere, has
    the token that it puts behind each row of the logits, which are on torch's device "meta" then.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    chosen: Sequence[int] | None = None


@dataclass(frozen=True)
class PromptChunk:
    """A piece of a prompt: tokens that continue a sequence for good, and whether the prompt ends with them."""

    tokens: Sequence[int]
    last: bool = True


StepInput = PromptChunk | TokenTree
"""What a step computes for one sequence: a part of its prompt, or a tree."""


def prompt_chunks(tokens: Sequence[int], rows: int | None) -> Iterator[PromptChunk]:
    """A prompt in pieces of at most ``rows`` tokens, None = in one piece."""
    size = rows or len(tokens)
    for start in range(0, len(tokens), size):
        yield PromptChunk(tokens[start : start + size], last=start + size >= len(tokens))


class SequenceState(Protocol):
    """The state of one sequence in a target. The root of a verified tree is not in it before ``commit``."""

    @property
    def position_limit(self) -> int | None:
        """How many positions the next step can address: the target's window, or less where the model computes all
        positions anew from there on; None = unlimited."""

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of the last verified tree on ``path`` (root first), drop the others."""

    def snapshot(self) -> Any:
        """The state, for ``restore``; only where everything verified is committed."""

    def restore(self, snapshot: Any) -> None:
        """Go back to an earlier state, as often as wanted."""

    def close(self) -> None:
        """Free the memory. The sequence cannot be used any more; closing it twice does nothing."""


class Target(Protocol):
    """A causal LM that computes steps of many sequences at once."""

    @property
    def kind(self) -> str:
        """Which implementation computes, in a word, for records of what was measured."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def window(self) -> int | None:
        """Number of positions that the model can address; None = unlimited."""

    @property
    def prompt_rows(self) -> int | None:
        """Maximum tokens of a prompt in one step: longer prompts are split; None = unlimited."""

    @property
    def near_tie(self) -> float:
        """Two logits that are closer may change places by rounding (see ``rounding``); 0 where they never do."""

    @property
    def layers(self) -> int:
        """Number of layers."""

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary: token ids are below it."""

    @property
    def weights(self) -> Sequence[Any]:
        """The objects that hold the weights, without those of a sequence's state: see ``memory.tensor_bytes``."""

    @property
    def embedding(self) -> Tensor:
        """The input embeddings, shape ``[vocabulary, hidden]``, for drafters that share them."""

    def unembed(self, hidden: Tensor) -> Tensor:
        """Logits ``[rows, vocabulary]`` of hidden states ``[rows, hidden]`` taken after the final norm."""

    def warm_up(self, tokens: int) -> None:
        """Do beforehand what is done once in a process for prompts of that many tokens: a library compiles kernels when
        it first sees a shape. Otherwise whoever asks first pays for all."""

    def memory(self, positions: int) -> int:
        """Maximum bytes of a sequence of ``positions`` tokens."""

    def open(self, features: Sequence[int] = ()) -> SequenceState:
        """A new, empty sequence.

        ``features`` are indices into the layer inputs in Hugging Face's ``hidden_states`` order (0 = embeddings, -1 =
        the last hidden state after the final norm); every output of this sequence carries them.
        """

    def step(self, parts: Sequence[tuple[SequenceState, StepInput]]) -> list[Output]:
        """Compute one piece for each of several different sequences.

        The tokens of a prompt are in their sequence's state afterwards. Logits and hidden states of a tree's node are
        those after decoding its path from the root token by token. Where it raises, these sequences cannot be used any
        more.
        """


@dataclass
class Context:
    """One request as a drafter sees it; the loop keeps it current.

    ``tokens`` is the prompt and the output so far; its last token is the root of the next tree. At most ``remaining``
    more tokens will be emitted. A drafter that draws at random draws from ``generator``; where ``noise`` is given
    (coupled sampling), it takes what it would draw with that noise instead, since the target will.

    ``confidence``: a drafter that can tell how likely its next guess is accepted, all before it included, stops below
    this probability. ``prediction`` is a text that the user expects back. ``task`` names the kind of request.
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
    """One verified step: the tree, what the target computed for it, the accepted path (root first) and the token after
    it."""

    tree: TokenTree
    output: Output
    path: list[int]
    token: int


class Continuations(Protocol):
    """Proposed continuations of a context, as a tree of tokens. Node 0 is the last token of the context."""

    def grow(self, nodes: Sequence[int]) -> list[list[tuple[int, float]]]:
        """The likeliest tokens behind each of these nodes, the likeliest first, with the probability of each behind
        what leads to it; none where nothing can be guessed. All of it takes one step of a model. They are the next
        nodes of the tree, in this order. A node is asked for once, and what it follows before."""


class Drafter:
    """Guesses what the target will say. A wrong guess costs time, never correctness.

    One instance serves one request at a time, ``fork`` makes more of them. A method overrides ``propose`` and what else
    it needs.
    """

    roots_in_prompt: bool = False
    """Whether the first tree is rooted at the last token of the prompt, so that the first output token, too, comes from
    a verification step (prompts of one token excepted).
    """

    remote: bool = False
    """Whether its drafts are made elsewhere and come when they come, so that they take no time here."""
    ready: bool = True
    """Whether its request takes part in the next step; only one that is remote may make it wait."""

    supports_continuations: bool = False
    """Whether it has ``continuations``, so that an edge can draft on while its verifier decides."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "propose" in vars(cls) and "propose_all" not in vars(cls):
            cls.batch_key = vars(cls).get("batch_key")  # type: ignore[assignment]

    def continuations(self, context: Context) -> Continuations:
        """What may follow ``context`` as it is now. Ends with the next call of ``continuations`` or ``propose``, for
        which the context may have gone on in any way."""
        raise NotImplementedError(f"{type(self).__name__} drafts whole trees only")

    @property
    def batch_key(self) -> Any:
        """What drafters of a class have in common that draft for several requests in the same steps: a model, a head.
        None: each drafts by itself. So does one of a class that changes only ``propose``, unless it says otherwise."""
        return None

    @property
    def unread_tokens(self) -> int:
        """Tokens of the request that it must read before it can draft; a length counts that time."""
        return 0

    def prepare(self, target: Target) -> Sequence[int]:
        """Called before every request: load and check what depends on the target. Returns the target's hidden states
        that this drafter wants to be given (see ``Target.open``).

        Raises ``UserError`` where the drafter does not fit the target.
        """
        return ()

    def fork(self) -> Drafter:
        """A drafter for one more request at the same time, prepared as this one is. It shares what one request may
        leave to the next, and not the state of a request, which ``begin`` has to make anew."""
        return copy.copy(self)

    def begin(self, target: Target, context: Context, prefill: Output) -> None:
        """A new request: the prompt is in the target, ``context.tokens`` already ends with the root of the first
        tree."""

    def weights(self) -> Sequence[Any]:
        """The objects that hold what the drafter was prepared with, a head's weights or a datastore, without the state
        of a request: see ``memory.tensor_bytes``. All that it has, unless it says otherwise."""
        return (self,)

    def memory(self, positions: int) -> int:
        """Bytes that one request of so many tokens makes it hold at most: a sequence of its own, hidden states that it
        has yet to read. 0 where it holds next to nothing, and before it is prepared."""
        return 0

    def propose(self, context: Context, budget: int) -> TokenTree:
        """A tree rooted at ``context.tokens[-1]`` with at most ``budget`` (>= 1) further nodes that can be accepted;
        only the root = no guess."""
        raise NotImplementedError

    @classmethod
    def propose_all(cls, drafts: Sequence[tuple[Self, Context, int]]) -> Sequence[TokenTree | Exception]:
        """``propose`` for several requests, each with its drafter, context and budget, all in the same steps of what
        their drafters have in common (see ``batch_key``); an error instead of a tree ends that request only."""
        raise NotImplementedError

    def observe(self, observation: Observation) -> None:
        """Called after every step that did not end the request, with ``context`` already advanced."""

    def end(self) -> None:
        """The request is over: free the memory that it took. Also called where ``begin`` was not."""
