"""What an edge drafts: for what was confirmed, and ahead, for what is likely to be."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor

from ianvs_specdec.backends.split.edge.controller import WORTH_SENDING
from ianvs_specdec.backends.split.edge.outlook import Outlook
from ianvs_specdec.common.errors import AnswerError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Context, Drafter, Observation, Output, TokenTree
from ianvs_specdec.engine.sampling import Noise


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
    """A draft on its way. ``ahead``: it was sent before the verdict came that it builds on."""

    tree: TokenTree
    ahead: bool
    at: float = field(default_factory=time.perf_counter)


class Drafts:
    """Drafts for one answer. Of ``ahead`` verdicts behind which something was drafted already, ``hits`` were among what
    it was drafted for."""

    def __init__(
        self,
        drafter: Drafter,
        target: FarTarget,
        prompt: Sequence[int],
        sampling: Sampling,
        prediction: Sequence[int],
    ) -> None:
        generator = torch.Generator().manual_seed(sampling.seed)
        noise = None if sampling.greedy else Noise(sampling.seed, target.vocabulary, target.device)
        self.context = Context(
            list(prompt), len(prompt), sampling.max_tokens, sampling, generator, noise, prediction=prediction
        )
        self._drafter, self._target = drafter, target
        self._begun = False
        self._outlook: Outlook | None = None
        """What is drafted behind what was confirmed; None where nothing is."""
        self.sent: deque[Sent] = deque()
        self._grown = self._ready = False
        """Whether something was drafted behind a draft on its way, and whether the last verdict was among what it
        was drafted for."""
        self._taken, self._seconds = 0, 0.0
        self.ahead = self.hits = 0
        self.unhidden = 0.0
        """Seconds of drafting with nothing on its way."""

    def confirm(self, tokens: Sequence[int]) -> None:
        """These tokens follow."""
        self._ready = False
        if self._outlook is not None:
            if self._outlook.advance(tokens):
                self._ready = self._grown and self._outlook.drafted
            else:
                self._outlook = None
        self.context.tokens += tokens
        self.context.remaining -= len(tokens)
        if not self._begun:
            self._drafter.begin(self._target, self.context, self._target.nothing())  # type: ignore[arg-type]
            self._begun = True

    def verdict(self, node: int, token: int) -> tuple[Sent, list[int]]:
        """The verifier accepted the draft up to ``node``, and puts out ``token`` behind it. Returns that draft, and the
        tokens that were confirmed."""
        if not self.sent or node >= len(self.sent[0].tree):
            raise AnswerError("the verifier judges what was not drafted: use the same version on both sides")
        sent = self.sent.popleft()
        path = sent.tree.path_to(node)
        tokens = [*(sent.tree.tokens[node] for node in path[1:]), token]
        if len(tokens) < len(sent.tree) or (self.sent and self.sent[0].tree.tokens[0] != token):
            self.sent.clear()
        self.confirm(tokens)
        self.ahead += self._grown
        self.hits += self._ready
        self._drafter.observe(Observation(sent.tree, self._target.nothing(), list(path), token))
        return sent, tokens

    def taken(self) -> tuple[int, float]:
        """How many tokens the lines were drafted further since the last call, and in how many seconds."""
        taken, self._taken, self._seconds = (self._taken, self._seconds), 0, 0.0
        return taken

    def next(self, length: int, ends: Container[int]) -> Sent | None:
        """With nothing on its way: the next draft to send, of at most ``length`` tokens, which may be none; None where
        the output is whole."""
        context, before = self.context, self._seconds
        if context.remaining < 1 or context.tokens[-1] in ends:
            return None
        # One more token follows the draft.
        length = min(length, context.remaining - 1)
        if self._drafter.supports_continuations:
            tree = TokenTree.chain(context.tokens[-1], self._line(length, ends))
        else:
            with self._timed():
                tree = self._drafter.propose(context, length) if length > 0 else TokenTree.chain(context.tokens[-1])
            self._taken += len(tree) - 1
        self.unhidden += self._seconds - before
        self._grown = False
        self.sent.append(Sent(tree, ahead=False))
        return self.sent[-1]

    def next_ahead(self, length: int) -> Sent | None:
        """The draft behind those on their way, of ``length`` tokens, where it is whole and will probably be needed."""
        length = min(length, self.context.remaining - self._on_their_way - 1)
        if self._outlook is None or not self.sent or length < 1:
            return None
        line = self._outlook.likeliest(self._on_their_way + length)
        nodes = line[self._on_their_way - 1 :]
        if len(nodes) <= length or self._outlook.chance(line[: self._on_their_way]) < WORTH_SENDING:
            return None
        guess, *tokens = [self._outlook.tokens[node] for node in nodes]
        self.sent.append(Sent(TokenTree.chain(guess, tokens), ahead=True))
        return self.sent[-1]

    def grow(self, length: int, ends: Container[int]) -> bool:
        """Draft what may follow a token further, for drafts of ``length`` behind the likeliest outcomes. Returns
        whether there was something worth it."""
        if not self._drafter.supports_continuations or not self.sent:
            return False
        outlook = self._looked_out()
        tips = outlook.tips(outlook.likeliest(self._on_their_way - 1), length, ends)
        # What is sent next comes first, however unsure the drafter is.
        line = outlook.tip(self._on_their_way + length, ends)
        if line is not None and line not in tips:
            tips = [line, *tips[:-1]]
        grown = bool(tips) and self._grow(outlook, tips)
        self._grown = self._grown or grown
        return grown

    def close(self) -> None:
        """Free what drafting takes."""
        self._drafter.end()

    @property
    def _on_their_way(self) -> int:
        """Tokens that all drafts on their way put out where all are right: the likeliest line has them."""
        return sum(len(sent.tree) for sent in self.sent)

    def _line(self, length: int, ends: Container[int]) -> list[int]:
        """The likeliest line of at most ``length`` tokens."""
        outlook = self._looked_out()
        while (tip := outlook.tip(length, ends)) is not None and self._grow(outlook, [tip]):
            pass
        return [outlook.tokens[node] for node in outlook.likeliest(length)]

    def _looked_out(self) -> Outlook:
        if self._outlook is None:
            with self._timed():
                self._outlook = Outlook(self._drafter.continuations(self.context))
        return self._outlook

    def _grow(self, outlook: Outlook, nodes: Sequence[int]) -> bool:
        with self._timed():
            found = outlook.grow(nodes)
        self._taken += found
        return found

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        with torch.inference_mode():
            yield
        self._seconds += time.perf_counter() - began
