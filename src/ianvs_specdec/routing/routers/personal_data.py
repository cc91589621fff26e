"""Detection of personal data in text by patterns and check digits. Returns kinds, never the text.

Card and account numbers need correct check digits, IP addresses are parsed, and phone numbers without a country code
need the usual punctuation or a preceding word such as "call". Patterns start at a boundary and have bounded
repetitions, so that the time is linear in the length of the text.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass

INVISIBLE = dict.fromkeys((0x00AD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF))
"""Invisible characters: soft hyphen, zero-width spaces and joiners."""

HYPHENS = re.compile("[\u2010-\u2015\u2212]")

IBAN_LENGTHS = {
    country: length
    for length, countries in {
        15: "NO",
        16: "BE",
        18: "DK FI FO GL NL SD",
        19: "MK SI",
        20: "AT BA EE KZ LT LU MN XK",
        21: "CH HR LI LV",
        22: "BG BH CR DE GB GE IE ME RS VA",
        23: "AE GI IL IQ OM SO TL",
        24: "AD CZ ES MD PK RO SA SE SK TN VG",
        25: "LY PT ST",
        26: "IS TR",
        27: "BI DJ FR GR IT MC MR SM",
        28: "AL AZ BY CY DO GT HU LB NI PL SV",
        29: "BR EG PS QA UA",
        30: "JO KW MU YE",
        31: "MT SC",
        32: "LC",
        33: "RU",
    }.items()
    for country in countries.split()
}
"""Country -> length of its account numbers (ISO 13616, the SWIFT registry)."""

CARDS = re.compile(
    r"4[0-9]{15}|5[1-5][0-9]{14}|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"
    r"|3[47][0-9]{13}|3(?:0[0-5]|[689][0-9])[0-9]{11}|6(?:011|5[0-9]{2}|4[4-9][0-9])[0-9]{12}|35[0-9]{14}"
    r"|62[0-9]{14,17}|(?:50|5[6-9]|6[0-9])[0-9]{14}"
)
"""The networks' number ranges (ISO/IEC 7812): Visa, Mastercard, American Express, Diners, Discover, JCB, UnionPay,
Maestro."""

CALLING_CODES = re.compile(
    r"1[2-9]|7[0-9]|2(?:0|7|[1234569][0-9])|3(?:[0-469]|[578][0-9])|4(?:[013-9]|2[0-9])|5(?:[1-8]|[09][0-9])"
    r"|6(?:[0-6]|[7-9][0-9])|8(?:[1246]|[0578][0-9])|9(?:[0-58]|[679][0-9])"
)
"""Country codes (ITU-T E.164)."""

AMERICAN = re.compile(r"(?:1[ .-]?)?(?:\([2-9][0-9]{2}\)[ .-]?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[ .-][0-9]{4}")
NATIONAL = re.compile(
    r"\(?0[1-9][0-9]{0,3}\)?(?:[ /-]| - )[0-9]{2,8}(?:[ -][0-9]{2,5}){0,3}|0[1-9](?:[ .-][0-9]{2}){4}|0[1-9][0-9]{8,10}"
    r"|\([0-9]{2,5}\) ?[0-9]{3,5}[ -][0-9]{3,5}"
)
"""Phone numbers without a country code, by their punctuation."""

ANNOUNCED = re.compile(
    r"\b(?:phone|telephone|tel|call|dial|mobile|cell|fax|whatsapp|sms|text|reach|ring|contact|handy|telefon(?:nummer)?"
    r"|rufnummer|t[eé]l[eé]fono|m[oó]vil|celular|t[eé]l[eé]phone|portable)\b"
    r"(?:\s|[.:=#,-]|\b(?:me|us|him|her|them|my|the|is|es|est|ist|at|on|number|no|nr|n[uú]mero|num[eé]ro|under|unter)\b){1,8}$",
    re.IGNORECASE,
)
"""Words before digits that indicate a phone number."""

SOCIAL_SECURITY = re.compile(r"\b(?:ssn|social security)\b[^0-9\n]{0,16}$", re.IGNORECASE)
VERSION = re.compile(r"(?:\bv|\bver|version|release|firmware|section|chapter|clause|build|§)[.:]?\s{0,2}$", re.I)

BEFORE = 48
"""Characters before a match that are searched for such words."""


def _email(found: str, before: str) -> bool:
    # The address of a Git repository.
    return not found.lower().startswith("git@")


def _phone(found: str, before: str) -> bool:
    digits = re.sub("[^0-9]", "", found)
    separators = re.sub("[0-9]", "", found)
    if separators in (".", "+.") or set(digits) <= {"0", "1"}:
        return False
    if found[0] == "+" or found[:2] == "00":
        number = digits if found[0] == "+" else digits[2:]
        if not CALLING_CODES.match(number) or not 8 <= len(number) <= 15:
            return False
        if number[0] == "1" and not re.fullmatch("1[2-9][0-9]{2}[2-9][0-9]{6}", number):
            return False
        return found[0] == "+" or len(separators) > 1 or ANNOUNCED.search(before) is not None
    if AMERICAN.fullmatch(found):
        return True
    groups = re.findall("[0-9]+", found)
    # Equidistant numbers are a list, and so are all ten digits.
    listed = len(groups) > 2 and len({int(b) - int(a) for a, b in itertools.pairwise(groups)}) == 1
    if NATIONAL.fullmatch(found) and 9 <= len(digits) <= 12 and not listed and digits not in "0123456789012":
        return True
    return len(digits) <= 15 and ANNOUNCED.search(before) is not None


def _card(found: str, before: str) -> bool:
    groups = re.split("[ -]", found)
    parts = ((start, end) for start in range(len(groups)) for end in range(start + 1, start + 7))
    return any(_card_number("".join(groups[start:end])) for start, end in parts)


def _card_number(digits: str) -> bool:
    if not 13 <= len(digits) <= 19 or not CARDS.fullmatch(digits):
        return False
    doubled = sum(sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (doubled + sum(map(int, digits[-1::-2]))) % 10 == 0


def _iban(found: str, before: str) -> bool:
    number = re.sub("[ -]", "", found).upper()
    length = IBAN_LENGTHS.get(number[:2], 0)
    # The match may include following text. The country determines the length.
    if not length or len(number) < length:
        return False
    number = number[:length]
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1


def _ip_address(found: str, before: str) -> bool:
    try:
        address = ipaddress.ip_address(found)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified or VERSION.search(before):
        return False
    if address.version == 4:
        return not found.startswith(("255.", "0."))
    # Qualified names such as a::b in program code.
    return len([group for group in found.split(":") if group]) > 2 or address.is_link_local


def _ssn(found: str, before: str) -> bool:
    return "-" in found or SOCIAL_SECURITY.search(before) is not None


def _assigned(found: str, before: str) -> bool:
    # Plain words and names of variables are no secrets.
    value = re.split(r"[\s:=>\"']", found.rstrip("\"'"))[-1]
    return re.search("[0-9]", value) is not None and not re.search(r"environ|\$|\.py\b|://", value)


@dataclass(frozen=True)
class Pattern:
    """``kind``: the recorded name; ``needs``: characters of which the text must contain one (a fast filter);
    ``accepts(found, before)``: validates a match, given the text before it.
    """

    kind: str
    expression: re.Pattern[str]
    needs: str
    accepts: Callable[[str, str], bool] = lambda found, before: True

    def holds(self, text: str, present: frozenset[str]) -> bool:
        """Whether the text, with the characters ``present``, contains data of the kind."""
        return not present.isdisjoint(self.needs) and any(
            self.accepts(match.group(match.lastindex or 0), text[max(0, match.start() - BEFORE) : match.start()])
            for match in self.expression.finditer(text)
        )


DIGITS = "0123456789"

PATTERNS = (
    Pattern(
        "email",
        re.compile(
            r"(?<![\w.%+-])[\w.%+-]{1,64}@(?:(?!-)[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w(@\[])"
            r"|(?<![\w.+-])[\w.+-]{1,64} ?[\[(](?:at|AT)[\])] ?(?:[\w-]{1,63} ?(?:\.|[\[(](?:dot|DOT)[\])]) ?){1,4}"
            r"[^\W\d_]{2,24}"
        ),
        "@([",
        _email,
    ),
    Pattern(
        "phone",
        re.compile(r"(?<![\w.+-])(?<![0-9] - )[+(]?\(?[0-9](?:[ ().\-/]{0,3}[0-9]){6,16}(?!(?!x[0-9])\w|[.,-][0-9])"),
        DIGITS,
        _phone,
    ),
    Pattern("iban", re.compile(r"(?<![A-Za-z0-9])(?=([A-Za-z]{2}[0-9]{2}(?:[ -]?[A-Za-z0-9]){11,40}))"), DIGITS, _iban),
    Pattern("card", re.compile(r"(?<![\w.-])[0-9]{3,19}(?![0-9])(?:[ -][0-9]{3,19}(?![0-9]))*"), DIGITS, _card),
    Pattern(
        "ip_address",
        re.compile(
            r"(?<![\w.:-])(?:(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![\w-]|\.[0-9])"
            r"|(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:]))"
        ),
        DIGITS,
        _ip_address,
    ),
    Pattern(
        "ssn",
        re.compile(
            r"(?<![\w.-])(?!000|666|9)[0-9]{3}(?:-(?!00)[0-9]{2}-| ?(?!00)[0-9]{2} ?)(?!0000)[0-9]{4}(?![\w-]|\.[0-9])"
        ),
        DIGITS,
        _ssn,
    ),
    Pattern(
        "secret",
        re.compile(
            r"(?<![\w-])(?:(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])|gh[pousr]_[A-Za-z0-9]{36}"
            r"|github_pat_[A-Za-z0-9_]{22}|glpat-[A-Za-z0-9_-]{20}|sk-(?:[a-z]{2,8}-)?[A-Za-z0-9_-]{20}"
            r"|xox[abeoprs]-[A-Za-z0-9-]{10}|AIza[A-Za-z0-9_-]{35}|[prs]k_live_[A-Za-z0-9]{16}|hf_[A-Za-z0-9]{30}"
            r"|npm_[A-Za-z0-9]{36}|eyJ[A-Za-z0-9_-]{8,999}\.eyJ)"
            r"|-----BEGIN (?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----"
            r"|(?<![\w+.-])[a-z][a-z0-9+]{1,15}://[^\s:/@]{1,64}:[^\s:/@]{3,64}@"
        ),
        "-_AJ:",
    ),
    Pattern(
        "secret",
        re.compile(
            r"(?<![a-z0-9])(?:(?:pass(?:word|wd|phrase|code)|pwd|(?:api|access|secret|private)[_ -]?key"
            r"|(?:access|auth|api|bearer)[_ -]?token|client[_ -]?secret)[\"']?\s{0,3}(?:is|:=|=>|:|=)\s{0,3}"
            r"[\"']?[^\s\"'<>(){}\[\],;]{6,128}|bearer [a-z0-9._~+/=-]{16,128}"
            r"|\bpin(?: code| number)?\s{0,3}(?:is|:)\s{0,3}[0-9]{4,8}\b)",
            re.IGNORECASE,
        ),
        DIGITS,
        _assigned,
    ),
)
"""The default patterns."""

KINDS = tuple(dict.fromkeys(pattern.kind for pattern in PATTERNS))


def plain(text: str) -> str:
    """Normalize full-width digits and unusual spaces and hyphens to ASCII."""
    if text.isascii():
        return text
    return HYPHENS.sub("-", unicodedata.normalize("NFKC", text).translate(INVISIBLE))


def kinds_in(text: str, kinds: Collection[str] = KINDS) -> list[str]:
    """The kinds of personal data in the text."""
    text = plain(text)
    present = frozenset(text)
    found = (pattern.kind for pattern in PATTERNS if pattern.kind in kinds and pattern.holds(text, present))
    return list(dict.fromkeys(found))
