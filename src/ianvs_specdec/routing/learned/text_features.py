"""What a text router reads in a query: an excerpt, and the surface numbers, which say what kind of question it is."""

from __future__ import annotations

import functools
import math
import re

import numpy as np

from ianvs_specdec.routing.outcomes.recorded import Floats

LONGEST = 12_000
"""Characters that are read of a query."""
LONG_WORD = 10
"""A word of as many letters is a long one."""

_TOKEN = re.compile(r"\w+|[^\w\s]")
_OPTION = re.compile(r"^\(?[A-Z][.):] ?", re.MULTILINE)
_CUE = re.compile(r"\n(?:answer|solution)\s*:\s*\Z", re.IGNORECASE)
_CAPITAL = re.compile(r"[A-Z]")
_SENTENCE = re.compile(r"[.?!]\s")

_WORDS = {
    "negation": "not except least incorrect never cannot without unlikely no nor isn doesn don t",
    "superlative": "best most main primary primarily likely mostly better greatest",
    "all": "all none both neither either only any every each above",
    "statement": "statement statements following conclusion argument premise proposition",
    "truth": "true false wrong right correct correctly yes valid invalid",
    "calculation": "calculate compute find solve evaluate simplify determine approximately equal equals many much "
    "value sum total average probability equation function number times",
    "supposition": "let suppose assume given if when then",
    "first person": "i my me we our us",
    "third person": "he she his her him they their man woman patient child",
    "reason": "why because explain explains therefore thus since reason due",
    "how": "how",
    "what": "what",
    "which": "which",
    "who": "who whom whose where",
    "modal": "should would could may might must can will",
    "unit": "cm m kg km mg ml g hz mm nm mol ev v volt volts ohm ohms degrees degree second seconds hour hours minute "
    "minutes year years day days meter meters mile miles inches percent week weeks month months",
    "roman": "ii iii iv vi vii",
    "small": "a an the of in to and or is are was were by for with on at from as that this it be",
}
_SIGNS = {
    "quote": "\"“”'\u2018\u2019",
    "bracket": "()[]",
    "mathematics": "=+^<>*/\\|{}~÷√∈∀∃∧⊃≡•·\u2212\u00d7\u2228\u223c",
    "percent": "%",
    "money": "$€£",
    "question mark": "?",
    "colon": ":",
    "comma": ",",
    "semicolon": ";",
    "hyphen": "-\u2013\u2014",
    "full stop": ".",
    "blank": "_",
}
_SHAPES = ("year", "number", "letter", "acronym", "capitalised", "long", "other word", "blank word", "other sign")
_CLASSES = (*_WORDS, *_SIGNS, *_SHAPES)
_NUMBER = {name: index for index, name in enumerate(_CLASSES)}
_KNOWN = {word: _NUMBER[name] for name, words in _WORDS.items() for word in words.split()}
_KNOWN |= {sign: _NUMBER[name] for name, signs in _SIGNS.items() for sign in signs}

_MEASURES = (
    *("length", "length of stem", "options", "words of an option", "spread of options", "options that are numbers"),
    *("options with numbers", "options with capital", "options with full stop", "new words of options"),
    *("words that all options share", "letters of a word", "different words", "lines", "sentences", "capitals"),
    *("digits", "signs", "beyond ASCII", "ends with question mark", "ends with colon", "ends with full stop"),
    *("ends with blank", "share of numbers", "share of long words"),
)
FEATURES = (*_MEASURES, *(f"{name} in {part}" for part in ("stem", "options") for name in _CLASSES))
"""Names of the numbers, in their order."""


def excerpt(text: str) -> str:
    """What is read of a text: of a long one its beginning and its end. Half of a character becomes a ``?``."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST // 2]}\n{text[-LONGEST // 2 :]}"
    return text.encode("utf-8", "replace").decode("utf-8")


def surface_of(text: str) -> Floats:
    """The surface numbers of an excerpt, float64 [FEATURES]."""
    body = _CUE.sub("", text)
    places = [match.span() for match in _OPTION.finditer(body)]
    ends = [start for start, _ in places[1:]] + [len(body)]
    options = [body[start:end].strip() for (_, start), end in zip(places, ends, strict=False)]
    stem = body[: places[0][0]] if places else body
    inside, below = _TOKEN.findall(stem), [_TOKEN.findall(option) for option in options]
    return np.concatenate([_measures(body, stem, options, inside, below), _counts(inside, below)])


def _counts(stem: list[str], options: list[list[str]]) -> Floats:
    """Logarithms of how many tokens of each class there are, in the stem and then in the options."""
    parts = (stem, [token for option in options for token in option])
    counts = [np.bincount(np.fromiter(map(_class, part), np.intp), minlength=len(_CLASSES)) for part in parts]
    return np.log1p(np.concatenate(counts))


@functools.lru_cache(maxsize=1 << 15)
def _class(token: str) -> int:
    known = _KNOWN.get(token, _KNOWN.get(token.lower()))
    return _NUMBER[_shape(token)] if known is None else known


def _shape(token: str) -> str:
    if token.isdigit():
        return "year" if len(token) == 4 and token[0] in "12" else "number"
    if not token[0].isalnum():
        return "blank word" if token[0] == "_" else "other sign"
    if len(token) == 1:
        return "letter"
    if not token.isalpha():
        return "other word"
    if token.isupper():
        return "acronym"
    if len(token) >= LONG_WORD:
        return "long"
    return "capitalised" if token[0].isupper() else "other word"


def _measures(body: str, stem: str, options: list[str], inside: list[str], below: list[list[str]]) -> list[float]:
    tokens = [*inside, *(token for option in below for token in option)]
    words, numbers = [token for token in tokens if token[0].isalpha()], [token for token in tokens if token.isdigit()]
    length, count = max(len(body), 1), max(len(tokens), 1)
    sets = [{token.lower() for token in option if token[0].isalpha()} for option in below] or [set()]
    union, shared = set().union(*sets), set.intersection(*sets)
    sizes = np.array([len(option) for option in options] or [0])
    many = max(len(options), 1)
    end = stem.rstrip()[-1:]
    signs = len(tokens) - sum(token[0].isalnum() for token in tokens)
    return [
        math.log1p(len(body)),
        math.log1p(len(stem)),
        float(len(options)),
        math.log1p(sum(len(option) for option in below) / many),
        math.log1p(float(sizes.std())),
        sum(not names for names in sets) / many,
        sum(any(token.isdigit() for token in option) for option in below) / many,
        sum(option[:1].isupper() for option in options) / many,
        sum(option.endswith(".") for option in options) / many,
        1.0 - len(union & {token.lower() for token in inside}) / max(len(union), 1),
        len(shared) / max(len(union), 1),
        sum(map(len, words)) / max(len(words), 1),
        len({word.lower() for word in words}) / max(len(words), 1),
        math.log1p(body.count("\n")),
        math.log1p(len(_SENTENCE.findall(stem))),
        len(_CAPITAL.findall(body)) / length,
        sum(map(len, numbers)) / length,
        signs / count,
        (len(body.encode("utf-8", "surrogatepass")) - len(body)) / length,
        *(float(end == sign) for sign in "?:._"),
        len(numbers) / count,
        sum(len(word) >= LONG_WORD for word in words) / max(len(words), 1),
    ]
