"""The plain types that every package uses: what is asked, how to sample, what came back and how it went.

Nothing here imports anything heavy, so routers, benchmarks, metrics and the journal start in milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from ianvs_specdec.common.sampling import Sampling as Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REJECTED_SHOWN = 8
ENGINES = ("auto", "native", "torch", "transformers")
"""What computes a model in this process: our native step, our own forward in torch, or the model as transformers has
it; auto = the first of these that can."""
POOLING = ("last", "max")
"""What a probe sees of a layer's hidden states: those of the prompt's last token, and the largest over all its tokens.
On the embedded world APGR was 0.76 by the former alone and 0.79 by both."""

LARGEST = 1 << 53
"""Beyond this, whole numbers cannot be told apart as floats, in which metrics add them up."""
Whole = Annotated[int, msgspec.Meta(gt=-LARGEST, lt=LARGEST)]
Count = Annotated[int, msgspec.Meta(ge=0, lt=LARGEST)]
Real = Annotated[float, msgspec.Meta(gt=-1e300, lt=1e300)]
Amount = Annotated[float, msgspec.Meta(ge=0, lt=LARGEST)]

Message = dict[str, str]
"""One chat message: ``{"role": "system" | "user" | "assistant", "content": text}``."""


@dataclass(frozen=True)
class Hints:
    """What is known of a request besides what is asked. No answer depends on it, only how fast it comes.

    ``prediction`` is a text that is expected back, whole or in parts; ``task`` names the kind of request.
    ``cancelled`` returns True once the client has cancelled the request; a back end that calls it, from any thread,
    ends the request with ``AbandonedError``. With ``Sampling.logprobs`` the ``top`` likeliest tokens are recorded
    with each token, also those of a ``scored`` prompt.
    """

    prediction: str = ""
    task: str = ""
    cancelled: Callable[[], bool] | None = None
    top: int = 0
    scored: bool = False


@dataclass(frozen=True, eq=False)
class Encoding:
    """A prompt as a model read it: ``states``, float16 ``[layers, 2 * hidden]``, are hidden states pooled as
    ``POOLING`` says. What is beyond the range of float16, as single states of large models may be, is its largest
    number."""

    states: NDArray[np.float16]
    prompt_tokens: int
    seconds: float


@dataclass(frozen=True)
class Work:
    """What an engine has done since it began: ``steps`` of its target, and of all verification steps of its requests
    (see ``Step``) how many they were and what they drafted, accepted, emitted and verified."""

    steps: int = 0
    verifications: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    verified: int = 0


@dataclass(frozen=True)
class Occupancy:
    """What an engine has to do: how many sequences share its steps, how many requests wait for room beside them, and
    the bytes that are set aside for what the sequences may come to hold; beside them, what it has ``done``."""

    sequences: int
    waiting: int
    memory: int
    done: Work = field(default=Work(), compare=False)


class Step(msgspec.Struct, array_like=True):
    """One verification step: a target forward that checks ``drafted`` tokens, keeps ``accepted`` and emits ``emitted``.

    ``verified`` counts the tokens the target computed in the step, the root included; ``emitted`` counts what reached
    the output, and of the right drafts only those count as ``accepted``: the step that runs into a stop or the token
    limit emits less than one token more than was right.
    """

    drafted: Count
    accepted: Count
    emitted: Count
    verified: Count


class SplitTrace(msgspec.Struct, omit_defaults=True):
    """What an edge and a verifier did for one answer, besides its steps.

    ``rounds`` are drafts that were verified, of which at most ``in_flight`` were on their way at a time; ``waits`` are
    those that were sent when none was, and ``drafting`` the seconds that the edge drafted meanwhile; the others took
    ``hidden`` seconds to draft, with what else the edge did meanwhile. Of ``ahead`` verdicts behind which something was
    drafted already, ``hits`` were among what it was drafted for. ``streamed`` tokens were drafted by the verifier.
    ``breaks`` counts streams that broke, ``lost`` the seconds without one; ``alone`` the last tokens that are the
    edge's own. ``prefill`` and ``work`` are the verifier's seconds until the first token and since, without waits for
    drafts; None where it could not tell.
    """

    rounds: Count
    in_flight: Count
    waits: Count
    drafting: Amount
    hidden: Amount
    ahead: Count
    hits: Count
    streamed: Count
    breaks: Count
    lost: Amount
    alone: Count
    prefill: Amount | None = None
    work: Amount | None = None


class Energy(msgspec.Struct, omit_defaults=True):
    """What a machine used for a request: its share of the ``joules`` and of the ``seconds`` in which they were used, by
    the counters that ``source`` names. Without work it would have used ``idle`` of the joules."""

    joules: Amount
    seconds: Amount
    idle: Amount | None = None
    source: str = ""


class Trace(msgspec.Struct, omit_defaults=True):
    """What happened to one request. Times are seconds since the request was issued, on a monotonic clock.

    ``chunks`` holds one ``(time, tokens)`` pair for each piece that reached the caller; speculative decoding emits
    several tokens at once, so tokens are counted, never chunks. ``steps`` holds the verification steps (the prefill
    pass and the one token it yields are not among them); it is empty for back ends that do not tell. ``near_ties``
    lists the output positions where the two best tokens were so close that rounding decides between them (see
    ``engine.rounding``; coupled sampling: in log-probability plus noise), with the gap. ``bytes_up`` and
    ``bytes_down`` are set by remote back ends.

    ``rejected`` holds, for each step, the draft's own continuation from the first token that was not accepted (at most
    ``REJECTED_SHOWN`` ids); empty for back ends that do not tell. ``failures`` lists the attempts that failed before
    this one: seconds since the request was issued, and what went wrong in a word or two. ``issued`` is the clock time
    (Unix seconds) of the request, by which overlapping requests are told, and ``busy``, where others were under way
    with it, its share of the time (see ``plugin.timings``); ``memory`` the bytes that the model's weights and caches
    held; ``target`` what computed the answer: a target of our engine by its ``kind``, or another engine by its name.

    ``confidence`` is how sure the model was, where ``Sampling.logprobs`` asked for it, else None: for each output token
    its natural log-probability, the entropy of the distribution (nats) and the margin between its two best
    probabilities. The distribution is the model's own: the softmax of the logits, before repetition penalty,
    temperature, top-k and top-p. ``characters`` is how many characters of the text each of these tokens adds.

    ``letters`` are the options of multiple choice (A, B ...) among the likeliest first tokens, with or without a blank
    before them, and their log-probabilities, told with ``confidence``. ``first`` is what an engine makes them of, the
    ids of these tokens with theirs; it is not kept. ``top`` are, for each token of ``confidence``, the likeliest tokens
    in its place, ids or their texts, with theirs, where ``Hints.top`` asked for them.

    ``thinking`` tokens were thoughts, before the first token of the answer, which came at the time ``answered``: None
    where nothing was thought, or nothing answered.

    ``drafting`` are the seconds in which an engine here made its drafts, of drafts made together its part; None for
    other back ends. The drafter's reading of the prompt is not in it, nor what it observes in steps without a draft.

    ``split`` is told where an edge drafted for a verifier, ``drafts`` (drafted, accepted) where a server has no steps
    but these sums. ``passes`` are then the target's forward passes after the prompt's, None where they are not known.
    ``energy`` is None where the machine has no counter.
    """

    chunks: list[tuple[Real, Count]] = []
    steps: list[Step] = []
    near_ties: list[tuple[Whole, Real]] = []
    bytes_up: Count | None = None
    bytes_down: Count | None = None
    rejected: list[tuple[Whole, ...]] = []
    failures: list[tuple[Real, str]] = []
    issued: Real | None = None
    busy: Real | None = None
    memory: Count | None = None
    target: str | None = None
    confidence: list[tuple[Real, Real, Real]] | None = None
    characters: list[Count] | None = None
    letters: list[tuple[str, Real]] | None = None
    first: list[tuple[Whole, Real]] = []
    top: list[list[tuple[Whole | str, Real]]] = []
    thinking: Count = 0
    answered: Real | None = None
    split: SplitTrace | None = None
    drafts: tuple[Count, Count] | None = None
    passes: Count | None = None
    drafting: Amount | None = None
    energy: Energy | None = None

    @property
    def tokens(self) -> int:
        return sum([n for _, n in self.chunks])

    @property
    def ttft(self) -> float | None:
        """Time to first token; None without output."""
        return self.chunks[0][0] if self.chunks else None

    @property
    def latency(self) -> float | None:
        """Time to the last token; None without output."""
        return self.chunks[-1][0] if self.chunks else None

    @property
    def seconds_per_token(self) -> float | None:
        """Of the tokens behind the first chunk; None where there are none."""
        after = sum([n for _, n in self.chunks[1:]])
        return (self.chunks[-1][0] - self.chunks[0][0]) / after if after else None

    def to_json(self) -> dict[str, Any]:
        """As JSON has it; ``chunks``, ``steps`` and ``near_ties`` are always there, others where they are known."""
        return {"chunks": [], "steps": [], "near_ties": [], **msgspec.to_builtins(self)}


def rounded(logprob: float, entropy: float, margin: float) -> tuple[float, float, float]:
    """A token's entry of ``Trace.confidence``, to five places. Adding 0.0 makes 0.0 of -0.0."""
    return round(logprob, 5) + 0.0, round(entropy, 5) + 0.0, round(margin, 5) + 0.0


class Completion(msgspec.Struct):
    """One answer: its text, its token ids where the back end tells them, counted usage and the trace.

    ``finish_reason`` is ``"stop"`` (end of sequence or a stop string) or ``"length"`` (``max_tokens`` reached).
    ``truncated`` counts the tokens left out at the front of a prompt that was too long for the model, None where a
    server does not tell; they are not among ``prompt_tokens``. ``cached_tokens`` of the prompt's were had from a
    server's cache, as it says.
    """

    text: str
    token_ids: list[Whole]
    prompt_tokens: Count
    completion_tokens: Count
    finish_reason: str
    trace: Trace
    truncated: Count | None = 0
    cached_tokens: Count = 0


@dataclass(frozen=True)
class Query:
    """One row of a benchmark, as the models see it.

    ``turns`` are the user's messages in order; each next turn is asked with the answers to the earlier ones as context.
    ``scorer`` names how an answer is judged (see ``benchmarks``) and ``group`` is the subject or category.
    ``prediction`` holds, for no turn or for each, a text that the user expects back ("" = none); ``temperature``
    replaces the model's where a benchmark prescribes one for the query.
    """

    turns: tuple[str, ...]
    id: str = ""
    group: str = ""
    scorer: str = "text"
    system: str = ""
    prediction: tuple[str, ...] = ()
    temperature: float | None = None

    def hints(self, turn: int) -> Hints:
        """What is known of the turn with this index."""
        return Hints(self.prediction[turn] if self.prediction else "", self.group)

    def to_json(self) -> dict[str, Any]:
        # Without these as if there were no such fields: what is derived from a query does not change.
        unset = {"prediction": (), "temperature": None}
        return {name: value for name, value in vars(self).items() if name not in unset or value != unset[name]}


def messages_of(query: Query, answers: Iterable[str]) -> list[Message]:
    """The chat up to the next unanswered turn: system, then user and assistant in alternation, ending with the user."""
    messages: list[Message] = [{"role": "system", "content": query.system}] if query.system else []
    given = list(answers)
    for turn, answer in zip(query.turns, given, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": query.turns[len(given)]}]
