"""What an answer says without the model's thoughts: these are neither scored nor judged nor run."""

from __future__ import annotations

import re

_NAME = r"(?:\w{1,20}[:_])?(?:think(?:ing)?|thoughts?|reasoning|scratchpad)"
_MARKS = (
    (rf"<{_NAME}>", rf"</{_NAME}>"),  # DeepSeek, Qwen, Seed-OSS, EXAONE and most others
    (r"\[THINK\]", r"\[/THINK\]"),  # Mistral
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),  # OpenThinker, Sky-T1
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),  # Cohere
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),  # Apertus
    (r"<\|channel>", r"<channel\|>"),  # Gemma
    ("◁think▷", "◁/think▷"),  # Kimi
    (r"\AHere(?:'s| is) my thought process:", r"Here(?:'s| is) my response:"),  # Granite
    (r"<\|channel\|>(?!final)", r"<\|channel\|>final[^<]{0,40}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>"),  # gpt-oss
    (r"\Aanalysis(?=[^\W_])|assistant(?:analysis|commentary)", "assistantfinal"),  # gpt-oss, special tokens skipped
)
_OPENS, _ENDS = ("|".join(marks) for marks in zip(*_MARKS, strict=True))
_MARK = re.compile(rf"(?P<quote>[\"'`])(?:{_OPENS}|{_ENDS})(?P=quote)|(?P<opens>{_OPENS})|{_ENDS}", re.IGNORECASE)
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_FRAME = re.compile(
    r"<\|start\|>assistant|<\|(?:return|end|call|(?:begin|end)_of_solution|(?:START|END)_(?:RESPONSE|TEXT))\|>"
)


def without_thoughts(text: str) -> str:
    """The text without thoughts and the marks around its parts. All before an end that nothing opened is thought, since
    a template opens thoughts in the prompt; of a thought without an end nothing is left. A mark in quotes, and a pair
    of them in code, are only talked about.
    """
    marks = _marks(_CODE.sub(_hidden, text))
    if not marks:
        return text
    kept, start, ended, last = list[str](), 0, False, len(text.rstrip())
    for mark in marks:
        said = [] if start < 0 else [text[start : mark.start()]]
        if said and not mark["opens"] and not (ended and mark.end() == last):
            kept.clear()
        else:
            kept += said
        start = -1 if mark["opens"] else mark.end()
        ended = ended or not mark["opens"]
    return _FRAME.sub("", "".join([*kept, text[start:] if start >= 0 else ""])).strip("\r\n")


def _marks(text: str) -> list[re.Match[str]]:
    return [mark for mark in _MARK.finditer(text) if not mark["quote"]]


def _hidden(code: re.Match[str]) -> str:
    """As many blanks where the code shows a whole thought."""
    marks = _marks(code[0])
    return " " * len(code[0]) if marks and marks[0]["opens"] and not marks[-1]["opens"] else code[0]
