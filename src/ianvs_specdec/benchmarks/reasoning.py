"""Removal of a model's reasoning from its answer: it is neither scored nor judged nor run."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NAME = r"(?:\w{1,20}[:_])?(?:think(?:ing)?|thoughts?|reason(?:ing)?|scratchpad)"
TAGS = (
    (rf"<{_NAME}>", rf"</{_NAME}>"),  # DeepSeek, Qwen, Seed-OSS, EXAONE and most others
    (r"\[THINK\]|◁think▷|<\|channel>", r"\[/THINK\]|◁/think▷|<channel\|>"),  # Mistral, Kimi, Gemma
    (r"<\|(?:begin_of_thought|start_thinking|inner_prefix)\|>", r"<\|(?:end_of_thought|end_thinking|inner_suffix)\|>"),
    (r"\AHere(?:'s| is) my thought process:", r"Here(?:'s| is) my response:"),  # Granite
    (r"<\|channel\|>(?!final)", r"<\|channel\|>final[^<]{0,40}(?:<\|constrain\|>[^<]{0,40})?<\|message\|>"),  # gpt-oss
    (r"\Aanalysis(?=[^\W_])|assistant(?:analysis|commentary)", "assistantfinal"),  # gpt-oss, special tokens skipped
)
_OPEN, _END = (f"(?:{'|'.join(marks)})" for marks in zip(*TAGS, strict=True))
QUOTE = r"(?<![a-z\d][a-z\d.,!?])(?P<quote>[\"'`])"
"""An opening quotation mark; after a word it is a closing one."""
# Tags in quotes or code are part of the answer.
_QUOTED = re.compile(
    rf"(?is){QUOTE}(?:{_OPEN}|{_END})(?P=quote)|```(?:(?!```|{_OPEN}|{_END}).)*+(?:{_OPEN}(?:(?!```).)*+)?```"
    rf"|`(?:(?!{_OPEN}|{_END})[^`\n])++{_OPEN}[^`\n]*`"
)
_OPEN_AT_END = re.compile(rf"(?i)({_OPEN})\s*\Z")
_ANY = re.compile(rf"(?i){_OPEN}|{_END}")
CHANNEL = "<|channel|>"
PARTS = (CHANNEL, "<|start|>", "<|message|>", "<|constrain|>", "<|end|>")
"""Tokens of gpt-oss around the parts of an answer."""


def reasoning_tags(tokens: Iterable[str]) -> frozenset[str]:
    """The special tokens of a tokenizer that delimit reasoning."""
    special = frozenset(tokens)
    parts = special.intersection(PARTS) if CHANNEL in special else frozenset[str]()
    return parts | {token for token in special if _ANY.fullmatch(token)}


def open_tag(prompt: str) -> str:
    """The opening tag at the end of a prompt, which the answer continues; "" if there is none."""
    found = _OPEN_AT_END.search(prompt)
    return found[1] if found else ""


def answer_start(text: str) -> int | None:
    """Index in ``text`` of the answer after all reasoning; 0 without reasoning, None without an answer."""
    if not _ANY.search(text):
        return 0
    answer = without_reasoning(text).strip()
    if not answer:
        return None
    if answer == text.strip():
        return 0
    place = text.rfind(answer)
    return place if place >= 0 else max(mark.end() for mark in _ANY.finditer(text))


def without_reasoning(text: str) -> str:
    """The text without reasoning and tags. Text before a closing tag is reasoning even without an opening tag, which
    may be in the prompt; unclosed reasoning extends to the end."""
    masked = _QUOTED.sub(lambda code: re.sub(rf"(?i)({_OPEN}|{_END})", lambda tag: "\0".join(tag[0]), code[0]), text)
    answer = re.sub(rf"(?is)\A.*{_END}", "", re.sub(rf"(?is){_OPEN}.*?(?:{_END}|\Z)", "", masked))
    if answer == masked:
        return text
    return re.sub(r"<\|\w{1,24}\|>(?:assistant)?", "", answer).replace("\0", "").strip("\r\n")
