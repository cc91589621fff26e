"""What an edge drafts: for what was confirmed, and ahead, for what is likely to be."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from ianvs_specdec.decoding import Context, Drafter, Observation, Output, TokenTree
from ianvs_specdec.decoding.meter import Stopwatch
from ianvs_specdec.decoding.sampling import Noise
from ianvs_specdec.errors import AnswerError
from ianvs_specdec.split.edge.controller import WORTH_SENDING
from ianvs_specdec.split.split_pb2 import Draft
from ianvs_specdec.split.wire import draft_of
from ianvs_specdec.types import Sampling

LEAST_LIKELY = 0.05
"""What is reached with less probability is not drafted ahead: it would almost always be in vain."""


class FarTarget:
    """What a drafter may ask of a target that is elsewhere (see ``contracts.Target``)."""

    kind = "verifier"
    device = torch.device("cpu")

    def __init__(self, vocabulary: int, window: int | None, dtype: torch.dtype, tokenizer: Path | None) -> None:
        self.vocabulary, self.window, self.dtype = vocabulary, window, dtype
        self.model = SimpleNamespace(name_or_path=str(tokenizer or ""))

    @property
    def embedding(self) -> Tensor:
        """As long as the vocabulary is, and of no width."""
        return torch.empty((self.vocabulary, 0))

    def nothing(self) -> Output:
        """In place of what the target computed: its shape."""
        return Output(torch.empty((1, self.vocabulary), device="meta"))


@dataclass
class Sent:
    """A draft on its way, and what it assumes (see ``split.proto``)."""

    position: int
    guess: int | None
    tree: TokenTree
    ahead: bool = True
    """Whether it was drafted before the verdict came that it builds on."""
    at: float | None = field(default_factory=time.perf_counter)
    """When it was sent; None where it waited for a connection."""

    def fits(self, output: Sequence[int]) -> bool:
        """Whether the verifier looks at it once ``output`` is confirmed; else it passes it over."""
        return self.position == len(output) and self.guess in (None, output[-1])

    @property
    def end(self) -> int:
        return self.position + len(self.tree) - 1


class Drafts:
    """Drafts for one answer. Of ``ahead`` verdicts behind which something was drafted already, ``hits`` left it in
    place."""

    def __init__(
        self, drafter: Drafter, target: FarTarget, prompt: Sequence[int], sampling: Sampling, prediction: Sequence[int]
    ) -> None:
        generator = torch.Generator().manual_seed(sampling.seed)
        noise = None if sampling.greedy else Noise(sampling.seed, target.vocabulary, target.device)
        self.context = Context(
            list(prompt), len(prompt), sampling.max_tokens, sampling, generator, noise, prediction=prediction
        )
        self._drafter, self._target = drafter, target
        self._begun = False
        self._lines = drafter if drafter.lines else None
        self._line: Iterator[tuple[int, float]] | None = None
        self._ahead: deque[tuple[int, float]] = deque()
        """What is drafted behind what was confirmed: tokens, and how likely each is reached."""
        self._sent: deque[Sent] = deque()
        self._taken, self._seconds = 0, 0.0
        self.ahead = self.hits = 0
        self.unhidden = 0.0
        """Seconds of drafting with nothing on its way."""
        self._hit = False
        """Whether the last verdict left what was drafted ahead in place."""

    @property
    def output(self) -> list[int]:
        return self.context.tokens[self.context.prompt_tokens :]

    @property
    def on_their_way(self) -> int:
        return len(self._sent)

    def confirm(self, tokens: Sequence[int], sent: Sent | None = None, path: Sequence[int] = ()) -> None:
        """These tokens follow; of a draft ``sent`` its ``path`` was accepted."""
        context = self.context
        known = [token for token, _ in list(self._ahead)[: len(tokens)]]
        self._hit = False
        if len(self._ahead) > (0 if sent is None else len(sent.tree) - 1):
            self.ahead += 1
            self.hits += known == list(tokens)
            self._hit = known == list(tokens)
        if known == list(tokens):
            for _ in tokens:
                _, likely = self._ahead.popleft()
            self._ahead = deque((token, min(1.0, p / max(likely, 1e-9))) for token, p in self._ahead)
        else:
            self._ahead.clear()
            self._line = None
        context.tokens += tokens
        context.remaining -= len(tokens)
        if not self._begun:
            self._drafter.begin(self._target, context, self._target.nothing())  # type: ignore[arg-type]
            self._begun = True
        elif sent is not None:
            observed = Observation(sent.tree, self._target.nothing(), list(path), tokens[-1])
            self._drafter.observe(observed)
        while self._sent and not self._sent[0].fits(self.output):
            self._sent.popleft()

    def verdict(self, node: int, token: int) -> tuple[Sent, list[int]]:
        """The verifier accepted the oldest draft on its way up to ``node``, and puts out ``token`` behind it. Returns
        that draft, and the tokens that were confirmed."""
        if not self._sent or node >= len(self._sent[0].tree):
            raise AnswerError("the verifier judges what was not drafted: use the same version on both sides")
        sent = self._sent.popleft()
        path = sent.tree.path_to(node)
        tokens = [*(sent.tree.tokens[node] for node in path[1:]), token]
        self.confirm(tokens, sent, path)
        return sent, tokens

    def taken(self) -> tuple[int, float]:
        """How many tokens were drafted since the last call, and in how many seconds."""
        taken, self._taken, self._seconds = (self._taken, self._seconds), 0, 0.0
        return taken

    def close(self) -> None:
        """Free what drafting takes."""
        self._drafter.end()

    def void(self) -> None:
        """No draft on its way will get there."""
        self._sent.clear()

    def anew(self, length: int, ends: Container[int]) -> Draft | None:
        """No draft on its way will get there: the first one to send over the next stream, if any."""
        self.void()
        draft = self.next(length, ends)
        if self._sent:
            self._sent[0].at = None
        return draft

    def next(self, length: int, ends: Container[int]) -> Draft | None:
        """The next draft to send, of at most ``length`` tokens; None where it is better to wait. With nothing on its
        way there is always one, though it may have no tokens, unless the output is whole."""
        if self.context.remaining < 1 or self.context.tokens[-1] in ends:
            return None
        if not self._sent:
            return self._send(self._now(length, ends))
        if self._lines is None:
            return None
        place, position = self._sent[-1].end - len(self.output), self._sent[-1].end + 1
        length = min(length, self._room(position))
        held = list(islice(self._ahead, place, place + 1 + length))
        if length < 1 or len(held) <= length or held[0][1] < WORTH_SENDING:
            return None
        guess, *tokens = [token for token, _ in held]
        return self._send(Sent(position, guess, TokenTree.chain(guess, tokens)))

    def grow(self, length: int, ends: Container[int]) -> bool:
        """Draft a token ahead, for drafts of ``length``. Returns whether there was one worth it."""
        if self._lines is None or not self._begun or self.context.remaining < 1:
            return False
        place = self._sent[-1].end - len(self.output) if self._sent else 0
        if len(self._ahead) > place + length or (self._ahead and self._ahead[-1][1] < LEAST_LIKELY):
            return False
        return self._grow(ends)

    def _now(self, length: int, ends: Container[int]) -> Sent:
        output, context = self.output, self.context
        length = min(length, self._room(len(output)))
        root, before = context.tokens[-1], self._seconds
        if self._lines is None:
            with self._timed():
                tree = self._drafter.propose(context, length) if length > 0 else TokenTree.chain(root)
            self._taken += len(tree) - 1
        else:
            while len(self._ahead) < length and self._grow(ends):
                pass
            tree = TokenTree.chain(root, [token for token, _ in islice(self._ahead, length)])
        self.unhidden += self._seconds - before
        return Sent(len(output), None, tree, self._hit)

    def _room(self, position: int) -> int:
        """How many tokens of a draft can become output behind ``position`` tokens of it, with one that follows."""
        return self.context.sampling.max_tokens - position - 1

    def _send(self, sent: Sent) -> Draft:
        self._sent.append(sent)
        return draft_of(sent.tree, sent.position, sent.guess)

    def _grow(self, ends: Container[int]) -> bool:
        if self._ahead and self._ahead[-1][0] in ends:
            return False
        assert self._lines is not None
        with self._timed():
            if self._line is None:
                self._line = self._lines.line(self.context)
            token, likely = next(self._line, (None, 0.0))
        if token is None:
            return False
        self._taken += 1
        self._ahead.append((token, likely * (self._ahead[-1][1] if self._ahead else 1.0)))
        return True

    @contextmanager
    def _timed(self) -> Iterator[None]:
        watch = Stopwatch()
        with torch.inference_mode():
            yield
        self._seconds += watch.lap()
