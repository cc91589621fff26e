"""Steps of our engine, and what a stated acceptance makes of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from bench.peers import LlamaCpp
from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree
from ianvs_specdec.engine.contracts import SequenceState, pieces


class Ours:
    """Our engine's target. ``wait`` returns when the device has done what it was given."""

    def __init__(self, target: Target, name: str, prompt: Sequence[int], wait: Callable[[], None]) -> None:
        self.name, self.target = name, target
        self._ids, self._wait = list(prompt), wait
        self._state: SequenceState | None = None

    @torch.inference_mode()
    def step(self, rows: int) -> float:
        """Seconds of one step of ``rows`` tokens after the prompt, with the logits of each, which is then dropped; of
        the whole prompt where ``rows`` is 0."""
        if self._state is None or not rows:
            seconds, self._state = self._timed(lambda: _read(self.target, self._ids, ())[0])
            if not rows:
                return seconds
        state, tree = self._state, TokenTree.chain(self._ids[0], self._ids[1:rows])
        return self._timed(lambda: self.target.step([(state, tree)]))[0]

    @torch.inference_mode()
    def speculate(self, head: Path | None, tokens: int, draft: int, tau: float) -> float:
        """Tokens per second, without the prompt, of decoding ``tokens`` with drafts of ``draft`` tokens by the ``head``
        (None: they cost nothing). How many count is drawn so that ``tau`` tokens come out per step; with 1 nothing is
        drafted."""
        drafter = None
        if tau > 1 and head is not None:
            drafter = drafters.create("eagle", {"head": str(head), "tree": "chain", "depth": draft})
        state, output = _read(self.target, self._ids, drafter.prepare(self.target) if drafter is not None else ())
        first = int(output.logits[-1].argmax())
        generator = torch.Generator(self.target.device)
        context = Context([*self._ids, first], len(self._ids), tokens, Sampling(), generator)
        if drafter is not None:
            drafter.begin(self.target, context, output)
        drafted = draft if tau > 1 else 0
        seconds, done = self._timed(lambda: speculate(self.target, state, drafter, context, drafted, tau))
        state.close()
        if drafter is not None:
            drafter.end()
        return done / seconds

    def _timed(self, work: Callable[[], Any]) -> tuple[float, Any]:
        self._wait()
        started = time.perf_counter()
        result = work()
        self._wait()
        return time.perf_counter() - started, result


class Theirs:
    """llama.cpp in a process of its own."""

    def __init__(self, driver: LlamaCpp, prompt: Sequence[int]) -> None:
        self.name, self._driver, self._ids = driver.name, driver, list(prompt)

    def step(self, rows: int) -> float:
        return self._driver.step(self._ids, rows)


def speculate(
    target: Target, state: SequenceState, drafter: Drafter | None, context: Context, draft: int, tau: float
) -> int:
    """The steps of ``engine.loop`` with drafts that count whatever the target says; the number of tokens."""
    chance, done, wanted = random.Random(1), 0, context.remaining
    while done < wanted:
        root = context.tokens[-1]
        if draft and drafter is not None:
            tree = drafter.propose(context, draft)
        else:
            tree = TokenTree.chain(root, [root] * draft)
        (output,) = target.step([(state, tree)])
        kept = min(int(tau - 1) + (chance.random() < (tau - 1) % 1), len(tree) - 1)
        path = list(range(kept + 1))
        token = int(output.logits.argmax(dim=-1)[kept])
        state.commit(path)
        context.tokens += [*(tree.tokens[node] for node in path[1:]), token]
        if drafter is not None:
            drafter.observe(Observation(tree, output, path, token))
        done += kept + 1
    return done


def _read(target: Target, ids: Sequence[int], features: Sequence[int]) -> tuple[SequenceState, Output]:
    state = target.open(features)
    parts = [target.step([(state, piece)])[0] for piece in pieces(ids, target.prompt_rows)]
    return state, Output(parts[-1].logits, tuple(map(torch.cat, zip(*(part.hidden for part in parts), strict=True))))
