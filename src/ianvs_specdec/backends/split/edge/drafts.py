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

from ianvs_specdec.backends.split.edge.controller import WORTH_SENDING
from ianvs_specdec.backends.split.edge.outlook import Chances, Outlook
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Context, Drafter, Observation, Output, TokenTree
from ianvs_specdec.engine.sampling import Noise
from ianvs_specdec.net.split.split_pb2 import Draft
from ianvs_specdec.net.split.wire import draft_of


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
    """Whether it was drafted before the verdict came that it builds on, as the likeliest line."""
    kept: bool = False
    """Whether it was so as another outcome, kept ready."""
    at: float | None = field(default_factory=time.perf_counter)
    """When it was sent; None where it waited for a connection."""

    def fits(self, output: Sequence[int]) -> bool:
        """Whether the verifier looks at it once ``output`` is confirmed; else it passes it over."""
        return self.position == len(output) and self.guess in (None, output[-1])

    @property
    def end(self) -> int:
        return self.position + len(self.tree) - 1


class Drafts:
    """Drafts for one answer. Of ``ahead`` verdicts behind which something was drafted already, ``hits`` were among what
    it was drafted for."""

    def __init__(
        self,
        drafter: Drafter,
        target: FarTarget,
        chances: Chances,
        prompt: Sequence[int],
        sampling: Sampling,
        prediction: Sequence[int],
    ) -> None:
        generator = torch.Generator().manual_seed(sampling.seed)
        noise = None if sampling.greedy else Noise(sampling.seed, target.vocabulary, target.device)
        self.context = Context(
            list(prompt), len(prompt), sampling.max_tokens, sampling, generator, noise, prediction=prediction
        )
        self._drafter, self._target, self._chances = drafter, target, chances
        self._begun = False
        self._outlook: Outlook | None = None
        """What is drafted behind what was confirmed; None where nothing is."""
        self._sent: deque[Sent] = deque()
        self._taken, self._seconds = 0, 0.0
        self.ahead = self.hits = 0
        self.unhidden = 0.0
        """Seconds of drafting with nothing on its way."""
        self._drafted = self._hidden = 0
        """Tokens of the verified drafts that were sent before the verdict before them, each with its guess."""
        self._since: float | None = None
        self._busy = 0.0
        """Seconds from the first confirmed token to the last verdict, without what the edge waited."""
        self._waited = 0.0
        self._hit = self._kept = False
        """Whether the last verdict was the likeliest one, or another one that was drafted for."""

    @property
    def output(self) -> list[int]:
        return self.context.tokens[self.context.prompt_tokens :]

    @property
    def on_their_way(self) -> int:
        return len(self._sent)

    def confirm(self, tokens: Sequence[int], sent: Sent | None = None, path: Sequence[int] = ()) -> None:
        """These tokens follow; of a draft ``sent`` its ``path`` was accepted."""
        context = self.context
        self._hit = self._kept = False
        if self._outlook is not None:
            self._look(self._outlook, tokens, [] if sent is None else sent.tree.tokens[1:])
        context.tokens += tokens
        context.remaining -= len(tokens)
        if not self._begun:
            self._drafter.begin(self._target, context, self._target.nothing())  # type: ignore[arg-type]
            self._begun, self._since, self._waited = True, time.perf_counter(), 0.0
        elif sent is not None:
            observed = Observation(sent.tree, self._target.nothing(), list(path), tokens[-1])
            self._drafter.observe(observed)
        while self._sent and not self._sent[0].fits(self.output):
            self._sent.popleft()

    def _look(self, outlook: Outlook, tokens: Sequence[int], drafted: Sequence[int]) -> None:
        """See what is left of the outlook where ``tokens`` follow, and ``drafted`` ones were verified."""
        end = [outlook.root, *outlook.behind(outlook.root, drafted)][-1]
        guess = next(outlook.likeliest(end), None)
        node = outlook.advance(tokens)
        self._hit = node is not None and node == guess
        self._kept = node is not None and not self._hit and outlook.drafted(node)
        self.ahead += guess is not None or self._kept
        self.hits += self._hit or self._kept
        if node is None:
            self._outlook = None

    def verdict(self, node: int, token: int) -> tuple[Sent, list[int]]:
        """The verifier accepted the oldest draft on its way up to ``node``, and puts out ``token`` behind it. Returns
        that draft, and the tokens that were confirmed."""
        if not self._sent or node >= len(self._sent[0].tree):
            raise AnswerError("the verifier judges what was not drafted: use the same version on both sides")
        sent = self._sent.popleft()
        self._hidden += 0 if sent.guess is None else len(sent.tree)
        path = sent.tree.path_to(node)
        tokens = [*(sent.tree.tokens[node] for node in path[1:]), token]
        self.confirm(tokens, sent, path)
        assert self._since is not None
        self._busy = time.perf_counter() - self._since - self._waited
        return sent, tokens

    def taken(self) -> tuple[int, float]:
        """How many tokens the lines were drafted further since the last call, and in how many seconds."""
        taken, self._taken, self._seconds = (self._taken, self._seconds), 0, 0.0
        return taken

    @property
    def hidden(self) -> float:
        """Seconds that it took to draft what was sent before the verdict before it: its tokens, at the mean of all that
        were drafted. What else the edge does is part of it: where drafting is the slowest part, it is not hidden."""
        return self._hidden * self._busy / max(1, self._drafted)

    def waited(self, seconds: float) -> None:
        """So long the edge did nothing for this answer."""
        self._waited += seconds

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
        if self._outlook is None:
            return None
        outlook, path, position = self._outlook, self._on_their_way(), self._sent[-1].end + 1
        length = min(length, self._room(position))
        held = list(islice(outlook.likeliest(path[-1]), 1 + length))
        if length < 1 or len(held) <= length or outlook.reached([*path[1:], held[0]]) < WORTH_SENDING:
            return None
        guess, *tokens = [outlook.tokens[node] for node in held]
        return self._send(Sent(position, guess, TokenTree.chain(guess, tokens)))

    def grow(self, length: int, ends: Container[int], several: bool = True) -> bool:
        """Draft what may follow a token further, for drafts of ``length``: behind ``several`` outcomes, or the
        likeliest one alone. Returns whether there was something worth it."""
        if not self._drafter.lines or not self._begun or self.context.remaining < 1:
            return False
        outlook, path = self._looked_out(), self._on_their_way()
        if several:
            tips = outlook.tips(path, length, ends, self._chances.width)
        else:
            tip = outlook.tip(path[-1] if path else outlook.root, length + 1, ends)
            tips = [] if tip is None else [tip]
        return bool(tips) and self._grow(outlook, tips)

    def _now(self, length: int, ends: Container[int]) -> Sent:
        output, context = self.output, self.context
        length = min(length, self._room(len(output)))
        root, before = context.tokens[-1], self._seconds
        if self._drafter.lines:
            tree = TokenTree.chain(root, self._line(length, ends))
        else:
            with self._timed():
                tree = self._drafter.propose(context, length) if length > 0 else TokenTree.chain(root)
            self._taken += len(tree) - 1
        self.unhidden += self._seconds - before
        return Sent(len(output), None, tree, self._hit, self._kept)

    def _line(self, length: int, ends: Container[int]) -> list[int]:
        """The likeliest line of at most so many tokens."""
        outlook = self._looked_out()
        while (tip := outlook.tip(outlook.root, length, ends)) is not None and self._grow(outlook, [tip]):
            pass
        return [outlook.tokens[node] for node in islice(outlook.likeliest(), length)]

    def _on_their_way(self) -> list[int]:
        """The root and the nodes of all drafts on their way, one behind the other; nothing where there are none."""
        if self._outlook is None or not self._sent:
            return []
        first, *others = self._sent
        tokens = [*first.tree.tokens[1:], *(token for sent in others for token in sent.tree.tokens)]
        return [self._outlook.root, *self._outlook.behind(self._outlook.root, tokens)]

    def _room(self, position: int) -> int:
        """How many tokens of a draft can become output behind ``position`` tokens of it, with one that follows."""
        return self.context.sampling.max_tokens - position - 1

    def _send(self, sent: Sent) -> Draft:
        self._sent.append(sent)
        return draft_of(sent.tree, sent.position, sent.guess)

    def _looked_out(self) -> Outlook:
        if self._outlook is None:
            with self._timed():
                self._outlook = Outlook(self._drafter.lines_behind(self.context), self._chances)
        return self._outlook

    def _grow(self, outlook: Outlook, nodes: Sequence[int]) -> bool:
        before = self._seconds
        with self._timed():
            found = outlook.grow(nodes)
        self._chances.took(len(nodes), self._seconds - before)
        self._taken += found > 0
        self._drafted += found > 0
        return found > 0

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        with torch.inference_mode():
            yield
        self._seconds += time.perf_counter() - began
