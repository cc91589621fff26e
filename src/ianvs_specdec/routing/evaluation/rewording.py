"""Rewordings of a question that change nothing of what it asks.

Code, words with digits or symbols, addresses and the letters of options stay as they are. Each function returns the
text as it is where it has nothing to change.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

from ianvs_specdec.benchmarks.extraction import OPTION, options_of
from ianvs_specdec.common.types import Query
from ianvs_specdec.routing.outcomes.recorded import digests

_CODE = r"(?s:```.*?(?:```|\Z))|`[^`\n]*`|(?m:^(?: {4}|\t).*$)"
_KEPT = re.compile(rf"{_CODE}|(?m:{OPTION.pattern})|(?<!\S)\S*(?:[\d\\@_=<>]|://)\S*")
# Of two letters are many symbols and units: Co, Mg, kg.
_WORD = re.compile(r"[^\W\d_]{3,}")
_LONG_WORD = re.compile(r"\b[a-z]{4,}\b")
# An option that names others, by their place or letter, is valid in its place only.
_OF_OTHERS = re.compile(
    r"(?i:\b(?:above|below|former|latter|both|n?either|preceding|previous|following|others|answers?|options?|choices?)\b"
    r"|\bof\s+(?:these|those|them)\b|\b(?:all|any|none)(?:\s+(?:of|are|is|apply|correct|true)\b|\W*$)"
    r"|\b[A-J]\)?\s*(?:[,&/+\u2013-]|\b(?:and|or)\b)\s*\(?[A-J]\b)"
    r"|(?i:\b(?:and|or|only)\s+\(?)[A-J]\b|\b[A-J]\)?(?i:\s+(?:and|or|only)\b)"
)
_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
_POLITE = (("Please answer this: ", ""), ("", "\nThank you."), ("Please help me. ", "\nThank you very much!"))


def case(text: str, random: Random) -> str:
    """All in small letters or all in capitals, without short words and names such as NaCl."""
    change = random.choice((str.lower, str.upper))

    def changed(word: re.Match[str]) -> str:
        new = change(word[0]) if word[0].istitle() or word[0].islower() else word[0]
        return new if len(new) == len(word[0]) else word[0]

    return _elsewhere(text, lambda part: _WORD.sub(changed, part))


def spaces(text: str, random: Random) -> str:
    """A quarter of the spaces doubled, other line ends, and one more at the end."""
    end = random.choice((" \n", "\r\n"))

    def changed(part: str) -> str:
        part = re.sub(r"(?<=\S) (?=\S)", lambda _: random.choice(("  ", " ", " ", " ")), part)
        return part.replace("\n", end)

    return _elsewhere(text, changed) + end


def options(text: str, random: Random) -> str:
    """The options in another order, under the same letters, if they are single lines at the end or before a cue."""
    lines, letters = text.split("\n"), options_of(text)
    labels = [OPTION.match(line) for line in lines]
    end = 1 + max((place for place, label in enumerate(labels) if label), default=-1)
    start = end - len(letters)
    last = [label for label in labels[start:end] if label]
    contents = [label.string[label.end() :] for label in last]
    cue = "\n".join(lines[end:]).strip()
    whole = "".join(label[1] for label in last) == letters and (not cue or re.fullmatch(".*:", cue))
    if not whole or len({*contents}) < 2 or any(map(_OF_OTHERS.search, contents)):
        return text
    moved = contents
    while moved == contents:
        moved = random.sample(contents, len(contents))
    lines[start:end] = [label[0] + content for label, content in zip(last, moved, strict=True)]
    return "\n".join(lines)


def typos(text: str, random: Random) -> str:
    """A neighbouring key in every 15th word, at least in one; not in names, short words and options."""
    hidden = "\n".join(_blank(line) if OPTION.match(line) else line for line in text.split("\n"))
    words = list(_LONG_WORD.finditer(_KEPT.sub(lambda found: _blank(found[0]), hidden)))
    letters = list(text)
    for word in random.sample(words, min(len(words), 1 + len(words) // 15)):
        place = random.randrange(word.start() + 1, word.end())
        keys = next(row for row in _KEYS if letters[place] in row)
        key = keys.index(letters[place])
        letters[place] = random.choice(keys[max(key - 1, 0) : key] + keys[key + 1 : key + 2])
    return "".join(letters)


def politeness(text: str, random: Random) -> str:
    """Please, thanks, or both. A cue for the answer, such as "Answer:", remains the end."""
    before, behind = random.choice(_POLITE)
    return _POLITE[0][0] + text if text.rstrip().endswith(":") else before + text + behind


KINDS: Mapping[str, Callable[[str, Random], str]] = {
    kind.__name__: kind for kind in (case, spaces, options, typos, politeness)
}


def reword(queries: Sequence[Query], seed: int) -> dict[str, dict[int, Query]]:
    """Kind -> place of a query -> the query reworded, without those that have nothing to reword. The draw depends on
    the seed and the query's text alone.
    """
    found: dict[str, dict[int, Query]] = {kind: {} for kind in KINDS}
    for place, (query, key) in enumerate(zip(queries, digests(queries), strict=True)):
        if query.scorer == "code" and "```" not in "".join(query.turns):
            continue
        for kind, change in KINDS.items():
            random = Random(f"{seed} {kind} {key}")
            turns = tuple(change(turn, random) for turn in query.turns)
            if turns != query.turns:
                found[kind][place] = replace(query, turns=turns)
    return found


def _elsewhere(text: str, change: Callable[[str], str]) -> str:
    """With a change of all that is not to be kept."""
    ends = [0, *itertools.chain(*(found.span() for found in _KEPT.finditer(text))), len(text)]
    parts = [text[start:end] for start, end in itertools.pairwise(ends)]
    return "".join(part if place % 2 else change(part) for place, part in enumerate(parts))


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
