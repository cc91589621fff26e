"""Whether a finished head pays: tokens per second with and without it, on prompts that are held out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ianvs_specdec import drafters, lengths
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.engine import Target, decode
from ianvs_specdec.training.heads.pool import Sample

PLAIN, GOODPUT = "plain", "goodput"
PROMPTS, TOKENS = 8, 64
"""How many are decoded, after one that warms up, and the most tokens of an answer: this takes seconds."""


def payoff(kind: str, head: Path, target: Target, samples: Sequence[Sample], ends: Sequence[int]) -> str:
    """A line that says what the head in the folder ``head`` gains here with its method's own length, or with goodput.

    ``samples`` are conversations that it has not learned from, ``ends`` the token ids that end an answer.
    """
    method = kind if kind in drafters.METHODS else "eagle"
    used = {PLAIN: "fixed:0", "": drafters.default_length(method), GOODPUT: GOODPUT}
    with_head = drafters.create(method, {"head": head})
    contestants = {name: lengths.create(length) for name, length in used.items()}
    tokens, seconds = dict.fromkeys(used, 0), dict.fromkeys(used, 0.0)
    prompts = [prompt for sample in samples if (prompt := _prompt(sample))][: PROMPTS + 1]
    for number, prompt in enumerate(prompts):
        for name, length in contestants.items():
            drafter = drafters.create("autoregressive") if name == PLAIN else with_head
            started = time.perf_counter()
            done = decode(target, drafter, length, prompt, Sampling(max_tokens=TOKENS), eos_ids=ends)
            if number:
                seconds[name] += time.perf_counter() - started
                tokens[name] += len(done.token_ids)
    if not all(tokens.values()):
        return "too few held-out prompts to measure what the head gains: give more conversations with --data"
    rates = {name: tokens[name] / seconds[name] for name in used}
    best = max(("", GOODPUT), key=rates.__getitem__)
    setting = f" and length: {best} ({rates['']:.1f} without that setting)" if best else ""
    gain = rates[best] / rates[PLAIN]
    told = (
        f"{rates[best]:.1f} token/s with the head{setting}, {rates[PLAIN]:.1f} without "
        f"({gain:.2f}x, {len(prompts) - 1} held-out prompts)"
    )
    if gain > 1:
        return told
    advice = "repeat the command with a larger --minutes or --tokens, or the model is too small for drafts to pay"
    return f"{told}: the head does not pay on this machine; {advice}"


def _prompt(sample: Sample) -> list[int]:
    """What precedes the first answer; of a text without questions its first half."""
    answered = int((sample.run > 0).nonzero()[0]) if bool((sample.run > 0).any()) else 0
    ids: list[int] = sample.tokens.tolist()
    return ids[: answered or len(ids) // 2]
