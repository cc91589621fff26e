"""How sure a model was of a token, from what servers return: its log-probability and those of the likeliest tokens."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ianvs_specdec.backends.untrusted import alternative, listed, logprob
from ianvs_specdec.benchmarks.extraction import LETTERS

TOP = 20
"""How many of the likeliest tokens are asked for: the most that OpenAI's API and vLLM give by default."""

LONGEST_TOKEN = 1 << 16
"""Bytes of one token's text."""

Triple = tuple[float, float, float]


def triple(own: float, best: Sequence[float]) -> Triple:
    """Log-probability, entropy (nats) and margin as in ``types.Trace.confidence``, from the token's ``own``
    log-probability and those of the ``best`` tokens, in any order.

    The entropy is approximate, a lower bound: what the other tokens have in common counts as one token. The margin is
    exact where two tokens are known.
    """
    known = sorted((min(1.0, math.exp(value)) for value in best), reverse=True)
    rest = max(0.0, 1.0 - sum(known))
    entropy = -sum(p * math.log(p) for p in (*known, rest) if p > 0)
    first, second, *_ = (*known, rest, 0.0)
    return own, entropy, first - second


def all_certain(triples: Sequence[Triple]) -> bool:
    """Whether each token is given as certain, and no other one, or one that then cannot be: so servers that speculate
    report drafts that were accepted."""
    return all(own == 0 and (entropy == 0 or margin < 0.999) for own, entropy, margin in triples)


def letters_of(tokens: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """The option letters among likely tokens, with the log-probability of the likelier form of each: "A" or " A"."""
    best: dict[str, float] = {}
    for text, value in tokens:
        letter = text.strip()
        if letter in LETTERS and len(letter) == 1 and value > best.get(letter, -math.inf):
            best[letter] = value
    return list(best.items())


class ToldLogprobs:
    """Collects ``logprobs.content`` of a streamed chat completion, as OpenAI's protocol has it."""

    def __init__(self) -> None:
        self.triples: list[Triple] = []
        self.alternatives = True
        """Whether every token came with ``top_logprobs``, without which its entropy and margin are not known."""
        self.letters: list[tuple[str, float]] = []
        """Among the likeliest first tokens."""
        self._pieces: list[str] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, told: Mapping[str, Any] | None) -> None:
        """Add a chunk's. Raises ValueError, TypeError or KeyError for what does not read as in the protocol,
        ImplausibleNumber, a ValueError, for what is no log-probability.
        """
        for token in (told or {}).get("content") or ():
            likely = [(str(other["token"]), alternative(other["logprob"])) for other in token.get("top_logprobs") or ()]
            best = [value for _, value in likely]
            self.letters = letters_of(likely) if not self.triples else self.letters
            self.alternatives = self.alternatives and bool(best)
            self.triples.append(triple(logprob(token["logprob"]), best))
            data = None if token.get("bytes") is None else listed(token["bytes"], "the bytes of a token", LONGEST_TOKEN)
            # A token may be a part of a character: then it has bytes but no text.
            self._pieces.append(str(token["token"]) if data is None else self._decoder.decode(bytes(data)))

    def characters(self, text: str) -> list[int] | None:
        """How many characters of ``text`` each token adds; None where the tokens' texts are not that text."""
        return list(map(len, self._pieces)) if "".join(self._pieces).startswith(text) else None
