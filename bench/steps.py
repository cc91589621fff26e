"""Who computes steps: our engine, with what a stated acceptance makes of it, and llama.cpp in a process of its own."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from bench.official.process import Driver
from ianvs_specdec import drafters
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Context, Drafter, Observation, Output, Target, TokenTree
from ianvs_specdec.engine.contracts import SequenceState, pieces


class Steps(Protocol):
    """What is timed. A step computes ``rows`` tokens behind the prompt, with the logits of each."""

    name: str

    def prompt(self) -> float:
        """Seconds of computing the whole prompt."""

    def step(self, rows: int) -> float:
        """Seconds of one step, which is then dropped."""


class Ours:
    """Our engine's target. ``wait`` returns when the device has done what it was given."""

    def __init__(self, target: Target, name: str, prompt: Sequence[int], wait: Callable[[], None]) -> None:
        self.name, self.target = name, target
        self._ids, self._wait = list(prompt), wait
        self._state: SequenceState | None = None

    @torch.inference_mode()
    def prompt(self) -> float:
        if self._state is not None:
            self._state.close()
        self._wait()
        started = time.perf_counter()
        self._state, _ = _read(self.target, self._ids, ())
        self._wait()
        return time.perf_counter() - started

    @torch.inference_mode()
    def step(self, rows: int) -> float:
        if self._state is None:
            self.prompt()
        assert self._state is not None
        tree = TokenTree.chain(self._ids[0], self._ids[1:rows])
        self._wait()
        started = time.perf_counter()
        self.target.step([(self._state, tree)])
        self._wait()
        return time.perf_counter() - started

    @torch.inference_mode()
    def speculate(self, head: Path | None, tokens: int, draft: int, tau: float) -> float:
        """Tokens per second, the prompt apart, of decoding ``tokens`` with drafts of ``draft`` tokens by the ``head``
        (None: they cost nothing). How many count is drawn so that ``tau`` tokens come out per step; with 1 nothing is
        drafted."""
        drafter = _drafter(head, draft) if tau > 1 and head is not None else None
        state, output = _read(self.target, self._ids, drafter.prepare(self.target) if drafter is not None else ())
        context = _context(self._ids, int(output.logits[-1].argmax()), tokens, self.target.device)
        if drafter is not None:
            drafter.begin(self.target, context, output)
        self._wait()
        started = time.perf_counter()
        done = _speculate(self.target, state, drafter, context, draft if tau > 1 else 0, tau)
        self._wait()
        seconds = time.perf_counter() - started
        state.close()
        if drafter is not None:
            drafter.end()
        return done / seconds


class LlamaCpp:
    """llama.cpp behind its driver."""

    def __init__(self, driver: Driver, prompt: Sequence[int]) -> None:
        self.name, self._driver, self._ids = driver.name, driver, list(prompt)

    def prompt(self) -> float:
        return float(self._driver.ask({"prompt": self._ids, "rows": 0})["seconds"])

    def step(self, rows: int) -> float:
        return float(self._driver.ask({"prompt": self._ids, "rows": rows})["seconds"])


def _read(target: Target, ids: Sequence[int], features: Sequence[int]) -> tuple[SequenceState, Output]:
    state = target.open(features)
    parts = [target.step([(state, piece)])[0] for piece in pieces(ids, target.prompt_rows)]
    return state, Output(parts[-1].logits, tuple(map(torch.cat, zip(*(part.hidden for part in parts), strict=True))))


def _drafter(head: Path, draft: int) -> Drafter:
    return drafters.create("eagle", {"head": str(head), "tree": "chain", "depth": draft})


def _context(prompt: list[int], first: int, tokens: int, device: torch.device) -> Context:
    return Context([*prompt, first], len(prompt), tokens, Sampling(), torch.Generator(device))


def _speculate(
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


def generate(model: Any, prompt: Sequence[int], tokens: int) -> float:
    """Tokens per second of ``generate`` of transformers, the prompt and the first token apart."""
    from bench.contestants import First

    ids, first = torch.tensor([list(prompt)], device=model.device), First()
    settings = {"max_new_tokens": tokens + 1, "min_new_tokens": tokens + 1, "do_sample": False, "pad_token_id": 0}
    model.generate(ids, attention_mask=torch.ones_like(ids), streamer=first, **settings)
    return tokens / (time.perf_counter() - first.first)
