"""Extraction of an option letter or a number from an answer in free words, in English and Chinese.

Numbers: GSM8K's own evaluation takes what follows the first "####"; evaluations of free-form answers take the last
number in the text (lm-evaluation-harness: ``flexible-extract``). Both compare texts; here they are values, so that 18,
18.00 and $18 are equal. Fractions and powers of ten are one number; a hyphen after a word or number is no sign;
exponents, references and periods are no number; a boxed or stated number comes before the last one.
"""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
from fractions import Fraction

from ianvs_specdec.benchmarks.reasoning import without_reasoning

LETTERS = "ABCDEFGHIJ"
FOUR_LETTERS = LETTERS[:4]
CACHED = 2000
"""Characters from which on an answer is not cached."""

_UPPER = f"[{LETTERS}]"
# Bounded: an answer may be a long line of brackets.
_OPEN = r"(?:\\(?:text|textbf|mathrm|mathbf|boxed)\{|[\s:=*_\"'`(\[{$<>|\u201c\u2018\u3011-]){0,12}"
# "A" and "I" are words: before another word they are letters only after "option" or if that word gives a reason.
_REASON = r"(?:because|since|as|for|due|given|which|and|n?or|is)\b"
_ALONE = (
    r"(?![A-Za-z0-9_])(?!'[A-Za-z])"
    rf"(?!(?<=[AI])(?<!ption [AI])(?<!hoice [AI])\s{{1,12}}(?!{_REASON})[a-z])"
)
_SMALL = rf"[{LETTERS.lower()}](?=[\s*_\"'`]*(?:[).,;:\]}}]|$))"
_LETTER = rf"{_OPEN}({_UPPER}{_ALONE}|{_SMALL})"

_NAMED = r"(?i:(?:option|choice|answer|letter)\s+)?"
_IS = r"(?i:\s+(?:is|was|are|would\s+(?:then\s+)?be|should\s+be|must\s+be|has\s+to\s+be|will\s+be))"
_STATEMENTS = (
    rf"(?i:\banswer\b)(?i:\s+(?:to\s+(?:the|this)\s+question|here|key))?{_IS}?(?i:\s+(?:clearly|therefore|thus|definitely))?"
    rf"(?i:\s+(?:most\s+likely|probably))?{_OPEN}{_NAMED}{_LETTER}",
    rf"(?i:\banswer\b){_IS}(?!{_OPEN}{_NAMED}{_UPPER}{_ALONE})[^\n()]{{1,80}}\(({_UPPER})\)",
    r"(?i:\b(?:(?:in)?correct|right|best|final|true|wrong|false)\s+(?:option|choice|letter|one|response|alternative"
    rf"|statement){_IS}?|\b(?:choose|chose|select|pick|go(?:ing)?\s+with|opt\s+for|choice\s+is|leav(?:es|ing))\b"
    rf"(?:\s+the)?){_OPEN}{_NAMED}{_LETTER}",
    rf"{_LETTER}[)\]*_\"'`]*(?:[^\n.]{{0,60}}[)\"])?(?i:\s+(?:is|must\s+be|seems|looks)\s+(?:clearly\s+)?(?:the\s+)?"
    r"(?:most\s+)?(?:correct|right|best|accurate|appropriate|answer)\b)",
    rf"(?i:\b(?:so|thus|therefore|hence|conclusion)\b)[,:]?(?i:\s+(?:it\s+is|it's|it\s+must\s+be))?\s+{_NAMED}{_LETTER}"
    r"(?=[.)\]*_\"'`!\s]*(?:\n|$))",
    rf"(?i:\bbut(?:\s+rather)?|\b(?:it|that)(?:\s+is|'s)|\bsay)\s+{_NAMED}{_LETTER}(?=[)*_\"'`]*(?:[.,;!]|\s*$))",
    rf"答案(?:选项)?(?:应该|应当|应)?(?:是|为|选)?(?:选项)?{_LETTER}",
    rf"(?:选择|选)(?:项|答案)?(?:是|为)?{_LETTER}",
    rf"(?:而|的(?:选项|说法|一项|项)?(?:应该|应当|应)?)(?:是|为)(?!\s*\n){_LETTER}",
    rf"{_LETTER}\)?\s*(?:选项|项)?(?:是|为)?(?:正确|对的|符合题意|当选)",
)
_BOXED = re.compile(rf"\\boxed\{{{_OPEN}({_UPPER})[)\]}}.\s]*\}}")
_WHOLE = re.compile(rf"[\s*_\"'`(\[$]*([{LETTERS}{LETTERS.lower()}])[\s*_\"'`)\].:,;。$]*")
_LABEL = re.compile(
    rf"(?m)^[ \t*_\"'`(\[]{{0,12}}(?:({_UPPER})(?:[*_\"'`]*[).:\],]|\s+(?:[-\u2013]|because\b))|([a-h])(?:\)|[.:] ))"
)
OPTION = re.compile(rf"^[ \t]*\(?([{LETTERS}])[.):、．][ \t]*(?=\S)", re.MULTILINE)  # noqa: RUF001
"""The letter of an option, before its text."""
_MENTIONED = re.compile(rf"(?i:\b(?:option|choice)\s+)({_UPPER}){_ALONE}")
_FREE = re.compile(rf"(?<![A-Za-z0-9_'])({_UPPER}){_ALONE}")

# Rejected letters, which are masked. A letter after a comma or "and" may start a new statement.
_GAP = r"[^\S\n]{0,4}"
_BEFORE = rf"{_GAP}(?:[oO]ptions?\s|[cC]hoices?\s|选项)?{_OPEN}"
_AFTER = r"[)\]}*_\"'`$]{0,6}"
_ONE = rf"(?:{_UPPER}{_ALONE}|(?<=\()[a-j](?=\))){_AFTER}(?:{_GAP}\((?!{_UPPER}\))[^()\n]{{1,60}}\))?"
_VERB = r"(?:(?:is|was|has|can(?:not)?|\w{1,3}ould|(?!options|choices|answers)[a-z]{3,12}s)\b|[\u4e00-\u9fff\d])"
_NEW = rf"(?!{_BEFORE}{_UPPER}{_AFTER}\s?{_VERB})"
_AND = rf"{_GAP}(?:(?:[,;]|,?{_GAP}and\b){_NEW}|[、/&+]|以?[和与及或]|(?<=[A-J]) (?=[A-J]\b)|,?{_GAP}n?or\b){_BEFORE}"
_ONES = rf"(?<![A-Za-z0-9_])(?<![a-z]')(?>{_ONE}(?:{_AND}{_ONE}){{0,9}})"
_SUBJECT = rf"(?<![选是为:])(?<![选是为:]\s)(?<!\bis\s){_ONES}{_GAP}"
_LY = r"[a-z]{3,12}ly"
_MASKS = (
    r"(?i:(?:\b(?:can)?not|n['\u2019]t|\b(?:never|neither|nor|rather\s+than|instead\s+of|rul(?:es?|ed|ing)\s+out"
    r"|(?:avoid|eliminat|exclud|discard|reject)(?:es?|ed|s|ing)?))\b(?:[^\S\n]+(?:be|been|to|go|going|with|choose|select|pick"
    rf"|agree|think|believe|say|even|that|the|it|it's|is|answer|either|both|likely|{_LY})\b){{0,8}}){_BEFORE}{_ONES}",
    rf"{_SUBJECT}(?i:(?:both\s|all\s|also\s|{_LY}\s)?(?:is|are|was|were|do|does|seems?|looks?|can|could|must|should)(?:"
    rf"(?:\s+not|n['\u2019]t|(?<=can)not)\b(?:\s+(?:be|an?|the|most|good|{_LY}))*\s*(?:(?=[.,;!\n]|$)|(?:best|right|correct"
    rf"|true|valid|accurate|appropriate|possible|answer|one|work|fit|apply|hold)\b)|(?:\s+(?:be|both|all|also|the|an?|{_LY}))*"
    r"\s+(?:wrong|incorrect|false|invalid|inaccurate|excluded|eliminated|ruled\s+out)\b))",
    r"(?:(?:(?<!得)不(?:应该|应当|应|能|可以|可能|可|会|该|宜|要)?|别|勿|没有?)(?:选择|选|是|为)|并非|而非|排除[了掉]?)"
    rf"{_BEFORE}{_ONES}",
    rf"{_SUBJECT}(?:选项|项|都|均|也|的|说法|表述|描述|是)*"
    r"(?:错|不(?:正确|对|符合|成立|可能|是|[应能可宜该]?选)|有误|(?:可以?|应|被)排除)",
    rf"(?<![A-Za-z0-9_])(?<![a-z]')(?>{_ONE}(?:{_AND}{_ONE}){{1,9}}|[a-j](?:\s?[,、/&]\s?|\s(?:and|or)\s)[a-j](?![\w']))",
)


def extract_choice(text: str) -> str | None:
    """The option letter that an answer chooses, without reasoning; None if it does not choose one.

    In order: the whole text or its first line is a letter ("B", "(B)"); the last boxed letter; the last statement ("the
    answer is B", "B is correct"); a label at the start ("B) because ..."), unless several follow; the only option named
    ("option B") or the only single letter.
    """
    return _cached_choice(text) if len(text) < CACHED else _choice(text)


def _choice(text: str) -> str | None:
    text = unicodedata.normalize("NFKC", without_reasoning(text))
    mentioned = (_MENTIONED.findall(text), _FREE.findall(text))
    for mask in _MASKS:
        text = re.sub(mask, "~", text)
    first_line = text.strip().partition("\n")[0]
    if whole := _WHOLE.fullmatch(first_line):
        return whole.group(1).upper()
    if boxed := _BOXED.findall(text):
        return str(boxed[-1])
    stated = [found for statement in _STATEMENTS for found in re.finditer(statement, text)]
    if stated:
        return max(stated, key=lambda found: found.end(1)).group(1).upper()
    labels = {(label[1] or label[2]).upper(): label.start() for label in reversed(list(_LABEL.finditer(text.strip())))}
    if len(labels) == 1 and 0 in labels.values():
        return next(iter(labels))
    for letters, pattern in zip(mentioned, (_MENTIONED, _FREE), strict=True):
        if len(set(letters)) == 1:
            return letters[0] if letters == pattern.findall(text) else None
    return None


_cached_choice = functools.lru_cache(1 << 13)(_choice)


def options_of(question: str) -> str:
    """The letters of the options at the end of a question (lines "A. ...", "B. ..."), such as "ABCD"; "" without."""
    found = run = ""
    for label in OPTION.finditer(question):
        letter = label.group(1)
        run = letter if letter == "A" else run + letter * (len(run) == LETTERS.index(letter))
        found = run if len(run) > 1 else found
    return found


# Numbers

LONGEST_NUMBER = 100
"""Maximum number of characters of a number."""

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
    # Roots, multiples of pi, other fractions; exponents of units, other powers; names; negations; list marks.
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
    # Without a verb, the solution may follow instead of its result.
    r"|(?:\banswer|答案)[*_\"'\s]{0,6}[:=](?=\W{0,9}[\d.,/]+[^\w\n]{0,3}(?:\w+[^\w\n]{0,3}){0,2}(?:$|\(|because|因为)))"
    r"[\s*_\"'`:(\[{$]*([^\n]*)"
)
_END = re.compile(r"[.!?;:]\W{0,3}(?=\s|$)|。|,(?!\d)|(?<!\\)[(\[]|\b(?:because|since|as|for|after|which|when|if|in)\b")


def marked_number(text: str) -> str | None:
    """The number after the first "#### " that is not a numbered title, without separators; None if there is none."""
    marks = enumerate(_MARKED.findall(text), start=1)
    found = next((mark for place, (mark, title) in marks if not title or mark.rstrip(".") != str(place)), "")
    number = found.replace(",", "").rstrip(".")
    return number if len(number) <= LONGEST_NUMBER and re.fullmatch(r"-?(?:\d+(?:\.\d+)?|\.\d+)", number) else None


def extract_number(text: str) -> Fraction | None:
    """The marked number, else the boxed, the stated or the last one, without reasoning; None if there is none."""
    text = without_reasoning(text)
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
    for match in reversed([match for match in _NUMBER.finditer(text) if len(match[0]) <= LONGEST_NUMBER]):
        with contextlib.suppress(ZeroDivisionError):
            value = Fraction(re.sub(r"[,\s]", "", match["ratio"] or match["digits"])) + int(match["whole"] or 0)
            return -value if match["minus"] or match["sign"] else value
    return None


def format_number(value: Fraction) -> str:
    """ "18", "0.75", "1/3": a decimal if exact within twelve places."""
    decimal = f"{float(value):.12f}".rstrip("0").rstrip(".")
    return decimal if Fraction(decimal) == value else str(value)
