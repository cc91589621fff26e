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
"""A quotation mark that begins a quotation: behind a word, it ends one."""
# A mark in quotes, or a thought that begins within code, is only talked about.
_SHOWN = re.compile(
    rf"(?is){QUOTE}(?:{_OPEN}|{_END})(?P=quote)|```(?:(?!```|{_OPEN}|{_END}).)*+(?:{_OPEN}(?:(?!```).)*+)?```"
    rf"|`(?:(?!{_OPEN}|{_END})[^`\n])++{_OPEN}[^`\n]*`"
)


_OPENED = re.compile(rf"(?i)({_OPEN})\s*\Z")
_ANY = re.compile(rf"(?i){_OPEN}|{_END}")
CHANNEL = "<|channel|>"
PARTS = (CHANNEL, "<|start|>", "<|message|>", "<|constrain|>", "<|end|>")
"""What gpt-oss writes around the parts of an answer."""


def reasoning_tags(tokens: Iterable[str]) -> frozenset[str]:
    """Those of a tokenizer's special tokens that tell thoughts from answers."""
    special = frozenset(tokens)
    parts = special.intersection(PARTS) if CHANNEL in special else frozenset[str]()
    return parts | {token for token in special if _ANY.fullmatch(token)}


def open_tag(prompt: str) -> str:
    """The mark with which the end of a prompt opens a thought that the answer goes on with; "" where there is none."""
    found = _OPENED.search(prompt)
    return found[1] if found else ""


def answer_start(text: str) -> int | None:
    """Where in ``text`` the answer begins, behind all thoughts: 0 where there are none, None where nothing follows."""
    if not _ANY.search(text):
        return 0
    said = without_reasoning(text).strip()
    if not said:
        return None
    if said == text.strip():
        return 0
    place = text.rfind(said)
    return place if place >= 0 else max(mark.end() for mark in _ANY.finditer(text))


def without_reasoning(text: str) -> str:
    """The text without thoughts and the marks around its parts. All before an unopened end is thought, since a template
    may open it in the prompt; of a thought without an end nothing is left."""
    shown = _SHOWN.sub(lambda code: re.sub(rf"(?i)({_OPEN}|{_END})", lambda mark: "\0".join(mark[0]), code[0]), text)
    said = re.sub(rf"(?is)\A.*{_END}", "", re.sub(rf"(?is){_OPEN}.*?(?:{_END}|\Z)", "", shown))
    return text if said == shown else re.sub(r"<\|\w{1,24}\|>(?:assistant)?", "", said).replace("\0", "").strip("\r\n")
