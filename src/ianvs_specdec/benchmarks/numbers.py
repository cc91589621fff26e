"""Which number an answer comes to.

The reference definitions: GSM8K's own evaluation takes what follows the first "####"; evaluations of free-form answers
take the last number in the text (lm-evaluation-harness: ``flexible-extract``). Both are texts there; here they are
values, so that 18, 18.00 and $18 are equal. Fractions and powers of ten, which those definitions split, are one number;
a hyphen after a word or number is no sign; exponents, references and periods are no number; a box or statement counts.
"""

from __future__ import annotations

import contextlib
import re
import unicodedata
from fractions import Fraction

from ianvs_specdec.benchmarks.thoughts import without_thoughts

LONGEST = 100
"""Characters of a number; what is longer is none that anyone meant."""

_MARKED = re.compile(r"#### (-?[0-9.,]++)([):]?[^\S\n]+[*_]*(?:[A-Z][a-z]|(?<=[.):][^\S\n])\w))?")
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
_NUMBER = re.compile(
    rf"(?P<minus>(?<![\w)\]])-[^\S\n]?)?(?:\\?[$€£¥₹][^\S\n]?(?P<sign>-)?)?"
    rf"(?:(?:(?P<whole>\d+)[^\S\n]+)?(?<![\d.,/])(?P<ratio>\d+[^\S\n]?/[^\S\n]?\d+)(?!\.?\d|/)"
    rf"|(?P<digits>(?:{_DIGITS})(?:[eE][-+]?\d{{1,2}}(?!\w))?))"
)
_BRACED = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}"
_BOX = re.compile(rf"\\(?:boxed|f(?:rame)?box)\s?({_BRACED})")
_POWER = r"(?:\s?\^\s?|\*\*)[{(]?([-+]?\d{1,2}(?!\d))[})]?"
_PLAIN = {
    r"\{,\}|,?\\[,!](?=\d)": ",",
    r"\\[cdt]?frac\s?(?:\{\s?(-?\d+)\s?\}|(\d))\s?(?:\{\s?(\d+)\s?\}|(\d))": r" \1\2/\3\4 ",
    rf"(?<=\d)\s?(?:[xX*·\u00d7]|\\times|\\cdot)\s?10{_POWER}": r"e\1",
    rf"(?<![\w.,^])10{_POWER}": r"1e\1",
    # Roots, multiples of pi, other fractions; exponents of units and other powers; names; what it is not; list marks.
    rf"(?:(?<![\d.,])(?:{_DIGITS})\s?)?(?:\\sqrt|\\pi\b|[√π])(?:{_BRACED}|\d+)?|\\[cdt]?frac\s?{_BRACED}{_BRACED}": " ",
    rf"(?<=[A-Za-z)}}\]$.])\s?[\^_]\{{?[-+]?\d+\}}?|(?<![\w.,])\d+{_POWER}": " ",
    r"(?<![\w\\])(?!(?:[A-Z]{3}|Rs)\d)[A-Za-z]+\d+": " ",
    rf"(?:\bnot|n['\u2019]t|不是)\s?[*$€£¥]*(?:{_DIGITS})|\n[^\S\n]*-[^\S\n]+": "\n",
}
_REFERENCE = re.compile(
    r"(?im)\b(?:steps?|equations?|eq\.|lines?|parts?|figures?|tables?|questions?|problems?|methods?)\s?[#(]?\d+"
    r"(?:(?:,| and| to) \d+)*|\bto \d+ (?:decimal|significant)|(?<=[.\w])\[\d+\]|[第共]\s?\d+\s?[步题行式]|步骤\s?\d+"
    r"|^[^\S\n]*(?:#+\s)?\(?\d+[.)](?=\s+\S)"
)
_ANSWER = re.compile(
    r"(?im)(?:\banswer\b[^\n.:=\d]{0,60}?\b(?:is|are|equals|be)\b|\bfinal\s+answer\b\W{0,9}?[:=]|答案[^\n。:\d]{0,6}?[是为]"
    # Without a verb it may be the solution that follows, and not its result.
    r"|(?:\banswer|答案)[*_\"'\s]{0,6}[:=](?=\W{0,9}[\d.,/]+[^\w\n]{0,3}(?:\w+[^\w\n]{0,3}){0,2}(?:$|\(|because|因为)))"
    r"[\s*_\"'`:(\[{$]*([^\n]*)"
)
_END = re.compile(r"[.!?;:]\W{0,3}(?=\s|$)|。|,(?!\d)|(?<!\\)[(\[]|\b(?:because|since|as|for|after|which|when|if|in)\b")


def marked_number(text: str) -> str | None:
    """What follows the first "#### " that numbers no title, without separators and final period; None = no number."""
    marks = enumerate(_MARKED.findall(text), start=1)
    found = next((mark for place, (mark, title) in marks if not title or mark.rstrip(".") != str(place)), "")
    number = found.replace(",", "").rstrip(".")
    return number if len(number) <= LONGEST and re.fullmatch(r"-?(?:\d+(?:\.\d+)?|\.\d+)", number) else None


def extract_number(text: str) -> Fraction | None:
    """The marked number, else the boxed, the stated or the last one outside of thoughts; None where there is none."""
    text = without_thoughts(text)
    if marked := marked_number(text):
        return Fraction(marked)
    text = re.sub(r"([⁻⁰¹²³⁴-⁹]+)", r"^\1", re.sub(r"(?<=\d)[\u202f\u2009](?=\d{3}(?!\d))", ",", text))
    text = unicodedata.normalize("NFKC", re.sub(r"(?=[¼-¾⅐-⅞])|(?<=\uff0c)", " ", text))
    for pattern, replacement in _PLAIN.items():
        text = re.sub(pattern, replacement, text.translate({0x2044: "/", 0x2212: "-"}))
    if boxes := [box for box in _BOX.findall(text) if box[1:-1].strip()]:
        return _last(boxes[-1])
    unnumbered = _REFERENCE.sub(" ", text)
    clause = _END.split((_ANSWER.findall(unnumbered) or [""])[-1], maxsplit=1)[0].rpartition("=")[2]
    stated = clause if len(_NUMBER.findall(clause)) == 1 else ""
    return next((value for part in (stated, unnumbered, text) if (value := _last(part)) is not None), None)


def _last(text: str) -> Fraction | None:
    for match in reversed([match for match in _NUMBER.finditer(text) if len(match[0]) <= LONGEST]):
        with contextlib.suppress(ZeroDivisionError):
            value = Fraction(re.sub(r"[,\s]", "", match["ratio"] or match["digits"])) + int(match["whole"] or 0)
            return -value if match["minus"] or match["sign"] else value
    return None


def plain(value: Fraction) -> str:
    """18, 0.75, 1/3: decimal where that is exact within twelve places."""
    decimal = f"{float(value):.12f}".rstrip("0").rstrip(".")
    return decimal if Fraction(decimal) == value else str(value)
