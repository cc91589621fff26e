"""Confidence of tokens from the log-probabilities that servers return, theirs and those of the likeliest tokens."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ianvs_specdec.backends.untrusted import bounded_list, logprob, top_logprob
from ianvs_specdec.benchmarks.extraction import LETTERS

TOP = 20
"""Requested likeliest tokens: the maximum of OpenAI's API and vLLM's default maximum."""

MAX_TOKEN_BYTES = 1 << 16

Triple = tuple[float, float, float]


def triple(own: float, best: Sequence[float]) -> Triple:
    """An entry of ``Trace.confidence``: log-probability, entropy (nats) and margin.

    ``own``: log-probability of the token; ``best``: those of the likeliest tokens, in any order. The entropy is a lower
    bound: all other tokens count as one. The margin is exact if ``best`` has two.
    """
    known = sorted((min(1.0, math.exp(value)) for value in best), reverse=True)
    rest = max(0.0, 1.0 - sum(known))
    entropy = -sum(p * math.log(p) for p in (*known, rest) if p > 0)
    first, second, *_ = (*known, rest, 0.0)
    return own, entropy, first - second


def all_certain(triples: Sequence[Triple]) -> bool:
    """Whether each token has probability 1, alone or next to impossible others.

    Some servers report accepted drafts so.
    """
    return all(own == 0 and (entropy == 0 or margin < 0.999) for own, entropy, margin in triples)


def letters_of(tokens: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Log-probabilities of the option letters among likely tokens, of the likelier form: "A" or " A"."""
    best: dict[str, float] = {}
    for text, value in tokens:
        letter = text.strip()
        if letter in LETTERS and len(letter) == 1 and value > best.get(letter, -math.inf):
            best[letter] = value
    return list(best.items())


class StreamedLogprobs:
    """Collects ``logprobs.content`` of a streamed chat completion in OpenAI's protocol."""

    def __init__(self) -> None:
        self.triples: list[Triple] = []
        self.alternatives = True
        """Whether every token has ``top_logprobs``, which entropy and margin need."""
        self.letters: list[tuple[str, float]] = []
        """Letters among the likeliest first tokens."""
        self._pieces: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, logprobs: Mapping[str, Any] | None) -> None:
        """Add a chunk's log-probabilities. Raises ValueError (ImplausibleNumber), TypeError or KeyError."""
        for token in (logprobs or {}).get("content") or ():
            likely = [(str(other["token"]), top_logprob(other["logprob"])) for other in token.get("top_logprobs") or ()]
            best = [value for _, value in likely]
            self.letters = letters_of(likely) if not self.triples else self.letters
            self.alternatives = self.alternatives and bool(best)
            self.triples.append(triple(logprob(token["logprob"]), best))
            # A token may be a part of a character: then it has bytes but no text.
            if token.get("bytes") is None:
                self._pieces.append(str(token["token"]))
            else:
                data = bounded_list(token["bytes"], "the bytes of a token", MAX_TOKEN_BYTES)
                self._pieces.append(self._decoder.decode(bytes(data)))

    def characters(self, text: str) -> list[int] | None:
        """Characters that each token adds to ``text``; None if the tokens' texts do not match it."""
        return list(map(len, self._pieces)) if "".join(self._pieces).startswith(text) else None
