"""Which number an answer comes to.

The reference definitions: GSM8K's own evaluation takes what follows the first "####"; evaluations of free-form answers
take the last number in the text (lm-evaluation-harness: ``flexible-extract``). Both are texts there; here they are
values, so that 18, 18.00 and $18 are equal. Fractions, which those definitions split in two, are read as one number; a
hyphen after a word or number is no sign; and periods alone are no number.
"""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST = 100
"""Characters of a number; what is longer is none that anyone meant."""

_MARKED = re.compile(r"#### (-?[0-9.,]+)")

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|(?<!\d)\.\d+"
_NUMBER = re.compile(
    rf"(?P<minus>(?<![\w)\]])[-\u2212][^\S\n]?)?(?:[$€£¥][^\S\n]?(?P<sign>-)?)?"
    rf"(?:\\d?frac\{{(?P<over>\d+)\}}\{{(?P<under>\d+)\}}"
    rf"|(?:(?P<whole>\d+)[^\S\n]+)?(?<![\d.,/])(?P<top>\d+)[^\S\n]?/[^\S\n]?(?P<bottom>\d+)(?!\.?\d|/)"
    rf"|(?P<digits>{_DIGITS}))"
)


def marked_number(text: str) -> str | None:
    """What follows the first "#### ", without thousands separators and final period; None where there is no number."""
    found = _MARKED.search(text)
    number = found.group(1).replace(",", "").rstrip(".") if found else ""
    return number if len(number) <= LONGEST and re.fullmatch(r"-?(?:\d+(?:\.\d+)?|\.\d+)", number) else None


def extract_number(text: str) -> Fraction | None:
    """The marked number, else the last one in the text; None where there is none."""
    if marked := marked_number(text):
        return Fraction(marked)
    # LaTeX writes thousands as 1{,}000 or 1\,000.
    found = list(_NUMBER.finditer(re.sub(r"\{,\}|\\[,!](?=\d)", ",", text)))
    return next((value for match in reversed(found) if (value := _value(match)) is not None), None)


def _value(match: re.Match[str]) -> Fraction | None:
    top, bottom = match["over"] or match["top"], match["under"] or match["bottom"]
    if len(match[0]) > LONGEST:
        return None
    if top is None:
        value = Fraction(match["digits"].replace(",", ""))
    elif int(bottom) == 0:
        return None
    else:
        value = Fraction(int(top), int(bottom)) + int(match["whole"] or 0)
    return -value if match["minus"] or match["sign"] else value


def plain(value: Fraction) -> str:
    """18, 0.75, 1/3: decimal where that is exact within twelve places."""
    decimal = f"{float(value):.12f}".rstrip("0").rstrip(".")
    return decimal if Fraction(decimal) == value else str(value)
