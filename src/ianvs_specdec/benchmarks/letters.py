"""Which option letter an answer in free words chooses, in English and Chinese."""

from __future__ import annotations

import re
import unicodedata

LETTERS = "ABCDEFGHIJ"

_UPPER = f"[{LETTERS}]"
# Bounded: an answer may be one long line of brackets.
_OPEN = r"(?:\\(?:text|textbf|mathrm|mathbf|boxed)\{|[\s:=*_\"'`(\[{$<>|\u201c\u2018-]){0,12}"
# "A" and "I" are words: before a further word they are letters only after "option", or if that word gives a reason.
_REASON = r"(?:because|since|as|for|due|given|which|and|is|or)\b"
_ALONE = (
    r"(?![A-Za-z0-9_])(?!'[A-Za-z])"
    rf"(?!(?<=[AI])(?<!ption [AI])(?<!hoice [AI])\s{{1,12}}(?!{_REASON})[a-z])"
)
_SMALL = rf"[{LETTERS.lower()}](?=[\s*_\"'`]*(?:[).,;:\]}}]|$))"
_LETTER = rf"{_OPEN}({_UPPER}{_ALONE}|{_SMALL})"

_NAMED = r"(?i:(?:option|choice|answer|letter)\s+)?"
_IS = r"(?i:\s+(?:is|was|are|would\s+(?:then\s+)?be|should\s+be|must\s+be|has\s+to\s+be|will\s+be))"
_STATED = (
    rf"(?i:\banswer\b)(?i:\s+(?:to\s+(?:the|this)\s+question|here|key))?{_IS}?(?i:\s+(?:clearly|therefore|thus|definitely))?"
    rf"(?i:\s+(?:most\s+likely|probably))?{_OPEN}{_NAMED}{_LETTER}",
    rf"(?i:\banswer\b){_IS}(?!{_OPEN}{_NAMED}{_UPPER}{_ALONE})[^\n()]{{1,80}}\(({_UPPER})\)",
    rf"(?i:\b(?:correct|right|best|final|true)\s+(?:option|choice|letter|one|response|alternative|statement)){_IS}?"
    rf"{_OPEN}{_NAMED}{_LETTER}",
    rf"(?i:\b(?:choose|chose|select|pick|go\s+with|going\s+with|opt\s+for|choice\s+is)\b)(?i:\s+the)?{_OPEN}{_NAMED}{_LETTER}",
    rf"{_LETTER}[)\]*_\"'`]*(?:[^\n.]{{0,60}}[)\"])?(?i:\s+(?:is|must\s+be|seems|looks)\s+(?:clearly\s+)?(?:the\s+)?"
    r"(?:most\s+)?(?:correct|right|best|accurate|appropriate)\b)",
    rf"(?i:\b(?:so|thus|therefore|hence|conclusion)\b)[,:]?(?i:\s+(?:it\s+is|it's|it\s+must\s+be))?\s+{_NAMED}{_LETTER}"
    r"(?=[.)\]*_\"'`!\s]*(?:\n|$))",
    rf"答案(?:选项)?(?:应该|应当|应)?(?:是|为|选)?(?:选项)?{_LETTER}",
    rf"(?<!不)(?:选择|选)(?:项|答案)?(?:是|为)?{_LETTER}(?!\s*(?:选项|项)?\s*(?:不|错))",
    rf"{_LETTER}\)?\s*(?:选项|项)?(?:是|为)?(?:正确|对的|符合题意|当选)",
)
_BOXED = re.compile(rf"\\boxed\{{{_OPEN}({_UPPER})[)\]}}.\s]*\}}")
_WHOLE = re.compile(rf"[\s*_\"'`(\[$]*([{LETTERS}{LETTERS.lower()}])[\s*_\"'`)\].:,;。$]*")
_STATEMENTS = tuple(map(re.compile, _STATED))
_LABEL = re.compile(rf"^[ \t*_\"'`(\[]{{0,12}}({_UPPER})(?:[*_\"'`]*[).:\],]|\s+(?:-|–|because\b))", re.MULTILINE)  # noqa: RUF001
_OPTION = re.compile(rf"^[ \t]*\(?([{LETTERS}])[.):、．][ \t]*\S", re.MULTILINE)  # noqa: RUF001
_MENTIONED = re.compile(rf"(?i:\b(?:option|choice)\s+)({_UPPER}){_ALONE}")
_FREE = re.compile(rf"(?<![A-Za-z0-9_'])({_UPPER}){_ALONE}")


def extract_choice(text: str) -> str | None:
    """The option letter that an answer chooses; None if it does not commit itself to one.

    In order: the whole text or its first line is a letter ("B", "(B)", "**B**."); the last boxed letter; the last
    statement ("the answer is B", "I choose B", "B is correct"); a label at the beginning ("B) because ..."), unless the
    options follow one another; the only option named ("option B") or the only letter that stands free.
    """
    text = unicodedata.normalize("NFKC", text)
    first_line = text.strip().partition("\n")[0]
    if whole := _WHOLE.fullmatch(first_line):
        return whole.group(1).upper()
    if boxed := _BOXED.findall(text):
        return str(boxed[-1])
    stated = [found for statement in _STATEMENTS for found in statement.finditer(text)]
    if stated:
        return max(stated, key=lambda found: found.end(1)).group(1).upper()
    labels = {label.group(1): label.start() for label in reversed(list(_LABEL.finditer(text.strip())))}
    if len(labels) == 1 and 0 in labels.values():
        return next(iter(labels))
    for pattern in (_MENTIONED, _FREE):
        letters = set(pattern.findall(text))
        if len(letters) == 1:
            return str(letters.pop())
    return None


def options_of(question: str) -> str:
    """The letters of the options that a question ends with, such as "ABCD": lines "A. ...", "B. ..." and so on, worked
    examples before them left out. "" if there are no two of them.
    """
    found = run = ""
    for label in _OPTION.finditer(question):
        letter = label.group(1)
        run = letter if letter == "A" else run + letter * (len(run) == LETTERS.index(letter))
        found = run if len(run) > 1 else found
    return found
