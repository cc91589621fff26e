"""The plain types every room knows: what is asked, how to sample, what came back and how it went.

Nothing here imports anything heavy, so routers, benchmarks, metrics and the journal start in milliseconds.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

REJECTED_SHOWN = 8
COLDEST, HOTTEST = 1e-6, 1e6
LEAST_PENALTY, LARGEST_PENALTY = 1e-3, 1e3
"""What logits are divided by: far beyond these, float32 has no numbers for what comes of it."""
LARGEST_COUNT = (1 << 31) - 1
SEEDS = range(-(1 << 63), 1 << 64)
"""What torch takes."""
ENGINES = ("auto", "native", "torch", "transformers")
"""What computes a model in this process: our native step, our own forward in torch, or the model as transformers has
it; auto = the first of these that can."""
POOLING = ("last", "max")
"""What a probe sees of a layer's hidden states: those of the prompt's last token, and the largest over all its tokens.
On the embedded world APGR was 0.76 by the former alone and 0.79 by both."""

Message = dict[str, str]
"""One chat message: ``{"role": "system" | "user" | "assistant", "content": text}``."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen and when generation ends.

    ``temperature`` 0 is greedy decoding; what is colder than ``COLDEST`` is refused. ``top_p``, ``top_k`` (0 = off)
    and ``repetition_penalty`` have the meaning and the order of application they have in transformers. ``stop`` strings
    end the output and are not part of it. Tokens that end it are none of its first ``min_tokens``, and with
    ``ignore_eos`` they are tokens like all others.
    """

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    min_tokens: int = 0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        warm, penal = self.temperature, self.repetition_penalty
        penalty = f"from {LEAST_PENALTY} to {LARGEST_PENALTY}"
        warmth = f"0 (greedy) or more, from {COLDEST} to {HOTTEST}"
        for name, ok, rule in (
            ("max_tokens", 1 <= self.max_tokens <= LARGEST_COUNT, f"at least 1 and at most {LARGEST_COUNT}"),
            ("temperature", warm == 0 or COLDEST <= warm <= HOTTEST, warmth),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", 0 <= self.top_k <= LARGEST_COUNT, f"0 (off) or at most {LARGEST_COUNT}"),
            ("repetition_penalty", LEAST_PENALTY <= penal <= LARGEST_PENALTY, penalty),
            ("seed", self.seed in SEEDS, "a number of 64 bits"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, f"from 0 to max_tokens ({self.max_tokens})"),
        ):
            if not ok:
                raise ValueError(f"{name} must be {rule}, got {reprlib.repr(getattr(self, name))}")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in fields(cls))

    def to_json(self) -> dict[str, Any]:
        """What determines an answer. What older journals do not know is left out where it asks for nothing."""
        plain, added = {**asdict(self), "stop": list(self.stop)}, ("logprobs", "min_tokens", "ignore_eos")
        return {name: value for name, value in plain.items() if value or name not in added}


class Early:
    """Whether one request's answer is to end after its first ``tokens`` tokens. ``ends`` is told these as an answer of
    that length, with a trace that has no times, unless the answer is no longer; ``ended`` is what it said."""

    def __init__(self, tokens: int, ends: Callable[[Completion], bool]) -> None:
        self.tokens, self._ends = tokens, ends
        self.ended = False

    def ends(self, first: Completion) -> bool:
        self.ended = self._ends(first)
        return self.ended


@dataclass(frozen=True)
class Hints:
    """What is known of a request besides what is asked. No answer depends on it, only how fast it comes, and with
    ``early`` how much of it.

    ``prediction`` is a text that is expected back, whole or in parts; ``task`` names the kind of request. Once
    ``given_up`` says so, nobody waits for the answer; a back end that asks it, from any thread, ends the request with
    ``AbandonedError``. ``probe`` is told what our engine thinks of the prompt (see ``decoding.probe``). ``early`` is
    asked by our engine alone.
    """

    prediction: str = ""
    task: str = ""
    given_up: Callable[[], bool] | None = None
    probe: Any = None
    early: Early | None = None


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


@dataclass
class Step:
    """One verification step: a target forward that checks ``drafted`` tokens, keeps ``accepted`` and emits ``emitted``.

    ``verified`` counts the tokens the target computed in the step, the root included; ``emitted`` counts what reached
    the output, and of the right drafts only those count as ``accepted``: the step that runs into a stop or the token
    limit emits less than one token more than was right.
    """

    drafted: int
    accepted: int
    emitted: int
    verified: int


@dataclass
class SplitTrace:
    """What an edge and a verifier did for one answer, besides its steps.

    ``rounds`` are drafts that were verified, of which at most ``in_flight`` were on their way at a time; ``waits`` are
    those that were sent when none was, and ``drafting`` the seconds that the edge drafted meanwhile; the others took
    ``hidden`` seconds to draft, with what else the edge did meanwhile. Of ``ahead`` verdicts behind which something was
    drafted already, ``hits`` were among what it was drafted for. ``streamed`` tokens were drafted by the verifier.
    ``breaks`` counts streams that broke, ``lost`` the seconds without one; ``alone`` the last tokens that are the
    edge's own. ``prefill`` and ``work`` are the verifier's seconds until the first token and since, without waits for
    drafts; None where it could not tell.
    """

    rounds: int
    in_flight: int
    waits: int
    drafting: float
    hidden: float
    ahead: int
    hits: int
    streamed: int
    breaks: int
    lost: float
    alone: int
    prefill: float | None
    work: float | None

    def to_json(self) -> dict[str, Any]:
        return {name: round(value, 7) for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SplitTrace:
        return cls(**{field.name: data.get(field.name) for field in fields(cls)})  # type: ignore[arg-type]


@dataclass
class Trace:
    """What happened to one request. Times are seconds since the request was issued, on a monotonic clock.

    ``chunks`` holds one ``(time, tokens)`` pair for each piece that reached the caller; speculative decoding emits
    several tokens at once, so tokens are counted, never chunks. ``steps`` holds the verification steps (the prefill
    pass and the one token it yields are not among them); it is empty for back ends that do not tell. ``near_ties``
    lists the output positions where the two best tokens were so close that rounding decides between them (see
    ``decoding.rounding``; coupled sampling: in log-probability plus noise), with the gap. ``bytes_up`` and
    ``bytes_down`` are set by remote back ends.

    ``rejected`` holds, for each step, the draft's own continuation from the first token that was not accepted (at most
    ``REJECTED_SHOWN`` ids); empty for back ends that do not tell. ``failures`` lists the attempts that failed before
    this one: seconds since the request was issued, and what went wrong in a word or two. ``issued`` is the clock time
    (Unix seconds) of the request, by which overlapping requests are told, and ``busy``, where others were under way
    with it, its share of the time (see ``plugin.overlap``); ``memory`` the bytes that the model's weights and caches
    held; ``target`` what computed the answer: a target of our engine by its ``kind``, or another engine by its name.

    ``confidence`` is how sure the model was, where ``Sampling.logprobs`` asked for it, else None: for each output token
    its natural log-probability, the entropy of the distribution (nats) and the margin between its two best
    probabilities. The distribution is the model's own: the softmax of the logits, before repetition penalty,
    temperature, top-k and top-p. ``characters`` is how many characters of the text each of these tokens adds.

    ``split`` is told where an edge drafted for a verifier, ``drafts`` (drafted, accepted) where that is all that is.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ("bytes_up", "bytes_down", "issued", "busy", "memory", "target", "drafts")

    chunks: list[tuple[float, int]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    near_ties: list[tuple[int, float]] = field(default_factory=list)
    bytes_up: int | None = None
    bytes_down: int | None = None
    rejected: list[tuple[int, ...]] = field(default_factory=list)
    failures: list[tuple[float, str]] = field(default_factory=list)
    issued: float | None = None
    busy: float | None = None
    memory: int | None = None
    target: str | None = None
    confidence: list[tuple[float, float, float]] | None = None
    characters: list[int] | None = None
    split: SplitTrace | None = None
    drafts: list[int] | None = None

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
        return {
            "chunks": [[round(t, 7), n] for t, n in self.chunks],
            "steps": [[s.drafted, s.accepted, s.emitted, s.verified] for s in self.steps],
            "near_ties": [list(tie) for tie in self.near_ties],
            **{name: value for name in self.OPTIONAL if (value := getattr(self, name)) is not None},
            **({"rejected": [list(ids) for ids in self.rejected]} if any(self.rejected) else {}),
            **({"failures": [[round(t, 3), what] for t, what in self.failures]} if self.failures else {}),
            **({} if self.confidence is None else {"confidence": [_rounded(*token) for token in self.confidence]}),
            **({} if self.characters is None else {"characters": list(self.characters)}),
            **({} if self.split is None else {"split": self.split.to_json()}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Trace:
        return cls(
            chunks=[(t, n) for t, n in data.get("chunks", ())],
            steps=[Step(*s) for s in data.get("steps", ())],
            near_ties=[(p, g) for p, g in data.get("near_ties", ())],
            rejected=[tuple(ids) for ids in data.get("rejected", ())],
            failures=[(t, what) for t, what in data.get("failures", ())],
            confidence=None if (told := data.get("confidence")) is None else [(p, h, m) for p, h, m in told],
            characters=None if (told := data.get("characters")) is None else list(told),
            split=None if (told := data.get("split")) is None else SplitTrace.from_json(told),
            **{name: data.get(name) for name in cls.OPTIONAL},
        )


def _rounded(*figures: float) -> list[float]:
    # Adding 0.0 makes 0.0 of -0.0.
    return [round(figure, 5) + 0.0 for figure in figures]


@dataclass
class Completion:
    """One answer: its text, its token ids where the back end tells them, counted usage and the trace.

    ``finish_reason`` is ``"stop"`` (end of sequence or a stop string) or ``"length"`` (``max_tokens`` reached).
    ``truncated`` counts the tokens left out at the front of a prompt that was too long for the model, None where a
    server does not tell; they are not among ``prompt_tokens``. ``cached_tokens`` of the prompt's were had from a
    server's cache, as it says.
    """

    text: str
    token_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    trace: Trace
    truncated: int | None = 0
    cached_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("trace", "cached_tokens")}
        cached = {"cached_tokens": self.cached_tokens} if self.cached_tokens else {}
        return {**plain, **cached, "trace": self.trace.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Completion:
        """Keys that are no fields, of a newer version say, are passed over."""
        known = {field.name: data[field.name] for field in fields(cls) if field.name in data}
        return cls(**{**known, "trace": Trace.from_json(data["trace"])})


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
        return {name: value for name, value in asdict(self).items() if name not in unset or value != unset[name]}


def messages_of(query: Query, answers: Iterable[str]) -> list[Message]:
    """The chat up to the next unanswered turn: system, then user and assistant in alternation, ending with the user."""
    messages: list[Message] = [{"role": "system", "content": query.system}] if query.system else []
    given = list(answers)
    for turn, answer in zip(query.turns, given, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
    return [*messages, {"role": "user", "content": query.turns[len(given)]}]
