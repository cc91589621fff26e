"""Between chats and token ids: where a model's files are, chat template, truncation, text that arrives in pieces.

What every back end needs that hands token ids to an engine. Nothing heavy is imported before a tokenizer is.
"""

from __future__ import annotations

import functools
import itertools
import re
import threading
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.backends.base import LLM, NO_HINTS, Asked, OnChunk
from ianvs_specdec.benchmarks.reasoning import answer_start, open_tag, reasoning_tags
from ianvs_specdec.common.errors import AbandonedError, ContextWindowError, PromptError, UserError, packages
from ianvs_specdec.common.types import Hints, Sampling, Trace
from ianvs_specdec.models.documents import unmarked
from ianvs_specdec.models.gguf.cached import IMPORT_VERSION, files_of, gguf_of
from ianvs_specdec.models.templates import failed, render, template_of
from ianvs_specdec.records.identity import FileDigests, digest

LONGEST_MARK = 32
"""Tokens of a prompt's end that may open a thought."""
LARGEST_VOCABULARY = 1 << 31
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def check_model(model: str, *, key: str = "model") -> None:
    """Raise UserError unless ``model`` is a model folder, a GGUF file or can be a name on the Hugging Face hub."""
    folder = Path(model)
    if gguf_of(folder) is not None:
        return
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            files = len(list(folder.glob("*.gguf")))
            reason = f"holds {files} GGUF files: name one" if files else "has no config.json: it is not a model"
            raise UserError(f"the model folder {model} {reason}", key=key)
    elif model.endswith(".gguf"):
        raise UserError(f"there is no file {model}", key=key)
    elif not HUB_NAME.fullmatch(model):
        where = f" (looked in {Path.cwd()})" if not folder.is_absolute() else ""
        raise UserError(
            f"there is no model folder {model}{where}, and it is not a name on the Hugging Face hub (org/name)",
            key=key,
        )


def model_folder(model: str, *, key: str = "model") -> Path:
    """The folder with the model's files, which come from the Hugging Face hub where ``model`` is a name there, and from
    its import where it is a GGUF file."""
    check_model(model, key=key)
    if (folder := local_folder(model, key=key)) is not None:
        return folder
    with packages():
        import huggingface_hub

    # Only what a model consists of: no pickled weights, which run code when they are loaded.
    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=wanted))
    except Exception as error:
        raise UserError(
            f"there is no model folder {model}, and it cannot be had from the Hugging Face hub: {error}",
            key=key,
        ) from error


def local_folder(model: str, *, key: str = "model") -> Path | None:
    """``model_folder``, None where the files come from the hub."""
    path = files_of(Path(model), key=key)
    return unmarked(path) if path.is_dir() else None


def model_digest(model: str, digests: FileDigests, *more: str) -> str:
    """The digest of the model's files, by which the journal knows it: a GGUF file's own, and how it is imported.
    ``more``: see ``FileDigests.folder``."""
    file = gguf_of(Path(model))
    if file is None:
        return digests.folder(model_folder(model), *more)
    return digest([digests.file(file), IMPORT_VERSION])


def chat_template(llm: LLM) -> str:
    """What a back end makes prompts with, "" where its model has none, or where a server does. Raises UserError."""
    if llm.truncate_prompts is None:
        return ""
    return template_of(gguf_of(Path(llm.model)) or model_folder(llm.model))


class Chat:
    """The token ids of a chat's prompt, and the text of output ids. Thread-safe.

    Prompts come from the tokenizer's chat template. A model without one gets a plain transcript: each message as
    ``Role: content`` and a blank line, then ``Assistant:``. ``window`` is the number of tokens that fit into the
    model's context, None where there is no limit; ``vocabulary`` the number of tokens that the model knows, None where
    the engine looks itself.

    A prompt fits where at least one token of the window is left for the answer, which ends where the window is full.
    One that does not fit is refused, or, where that is permitted, loses its oldest tokens, so that ``max_tokens``, but
    at most half of the window, remain for the answer.
    """

    def __init__(self, tokenizer: Any, window: int | None, vocabulary: int | None = None) -> None:
        self.tokenizer, self.window, self._vocabulary = tokenizer, window, vocabulary
        # A tokenizer keeps settings of the call in progress in itself.
        self._encoding = threading.Lock()
        # The choices of a request have one text, which may take a second.
        self._encode = functools.lru_cache(4)(
            lambda text, special: array("i", tokenizer(text, add_special_tokens=special)["input_ids"])
        )
        self._alone: dict[int, str] = {}
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {number: token.content for number, token in added.items() if token.special}
        known = reasoning_tags(special.values())
        self._marks = frozenset(number for number, content in special.items() if content in known)
        self._skipped = special.keys() - self._marks

    def prompt(
        self, asked: Asked, sampling: Sampling, hints: Hints = NO_HINTS, *, truncate: bool
    ) -> tuple[list[int], int]:
        """The prompt's ids, and how many were left out at its front. Raises ContextWindowError for one that does not
        fit, unless ``truncate`` permits to cut it, and PromptError for one that has no token, or one that the model
        does not know.
        """
        return self._fitted(self.encoded(asked, sampling, hints), sampling, hints, truncate=truncate)

    def encoded(
        self, asked: Asked, sampling: Sampling, hints: Hints = NO_HINTS, *, special: bool | None = None
    ) -> list[int]:
        """The ids of a chat, or of what is continued as it is: ids, or a text, with the special tokens that the
        tokenizer adds where ``special``; None: as generation has them. Raises PromptError as ``prompt``."""
        if isinstance(asked, list) and self.tokenizer.chat_template:
            ids = self.ids(render(self.tokenizer, asked, sampling), hints, special=bool(special))
            if not ids:
                raise failed("it and the tokenizer make no token")
            return ids
        if isinstance(asked, list):
            transcript = "".join(f"{message['role'].capitalize()}: {message['content']}\n\n" for message in asked)
            asked = f"{transcript}Assistant:"
        return self.ids(asked, hints, special=special is not False) if isinstance(asked, str) else self._checked(asked)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        vocabulary = self._vocabulary or LARGEST_VOCABULARY
        if ids and 0 <= min(ids) <= max(ids) < vocabulary:
            return list(ids)
        raise PromptError(f"a prompt must have at least one token, each from 0 to {vocabulary - 1}")

    def _fitted(self, ids: list[int], sampling: Sampling, hints: Hints, *, truncate: bool) -> tuple[list[int], int]:
        if not ids:
            raise PromptError("a prompt must have at least one token")
        if self.window is None or len(ids) < self.window:
            return ids, 0
        if not truncate:
            reason = (
                f"the prompt has {len(ids)} tokens and leaves no room in the model's context window of {self.window}"
            )
            # What is cut off would have no scores.
            cut = "" if hints.scored else ", or cut such prompts (truncate_prompts: true)"
            advice = f"shorten it, or take a model with a longer window{cut}"
            raise ContextWindowError(f"{reason}: {advice}", [(0.0, ContextWindowError.KIND)])
        truncated = len(ids) - (self.window - min(sampling.max_tokens, self.window // 2))
        return ids[truncated:], truncated

    def ids(self, text: str, hints: Hints = NO_HINTS, *, special: bool = False) -> list[int]:
        """The ids of ``text``, with those that begin or end a sequence where ``special``."""
        with self._encoding:
            if hints.given_up is not None and hints.given_up():
                raise AbandonedError
            return self._known(list(self._encode(text, special)))

    def _known(self, ids: list[int]) -> list[int]:
        if self._vocabulary is not None and ids and max(ids) >= self._vocabulary:
            raise UserError(
                f"the tokenizer makes the token {max(ids)} of this text, the model knows those below "
                f"{self._vocabulary}: the tokenizer is of another model",
                key="model",
            )
        return ids

    def text(self, ids: list[int]) -> str:
        """Without special tokens, those apart that mark thoughts."""
        marked = not self._marks.isdisjoint(ids)
        ids = [i for i in ids if i not in self._skipped] if marked else ids
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not marked)
        return text

    def whole_text(self, ids: Sequence[int]) -> str:
        """With special tokens. Raises PromptError for ids that the model does not know."""
        text: str = self.tokenizer.decode(self._checked(ids), skip_special_tokens=False)
        return text

    def opened(self, prompt_ids: list[int]) -> str:
        """The mark of a thought that the prompt opens at its end, "" where it opens none."""
        return open_tag(self.tokenizer.decode(prompt_ids[-LONGEST_MARK:], skip_special_tokens=False))

    def pieces(self, ids: list[int]) -> list[str]:
        """The text that each of ``ids`` adds to the text of all of them; "" for a special token."""
        # With most tokenizers, that is what it is by itself; decoding in context takes ten times as long.
        alone = [self.piece(i) for i in ids]
        if "".join(alone) == self.text(ids):
            return alone
        from ianvs_specdec.engine.stopping import TextPieces

        pieces = TextPieces(self.text)
        return [pieces.next([number]) for number in ids]

    def piece(self, number: int) -> str:
        """The text of a token by itself."""
        if number not in self._alone:
            self._alone[number] = self.text([number])
        return self._alone[number]


def vocabulary_of(config: Any) -> int | None:
    """The number of tokens that a model's configuration (transformers) states."""
    vocabulary: int | None = getattr(config.get_text_config(), "vocab_size", None)
    return vocabulary


def end_ids(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end an output."""
    configured = generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


class TextStream:
    """Turns chunks of token ids into chunks of text. What may still change or be cut off waits for a later chunk."""

    def __init__(self, decode: Callable[[list[int]], str], stop: tuple[str, ...], on_chunk: OnChunk) -> None:
        from ianvs_specdec.engine.stopping import TextPieces

        self._pieces = TextPieces(decode)
        self._stop, self._on_chunk = [string for string in stop if string], on_chunk
        self._hold = max(map(len, self._stop), default=1) - 1
        self._tail = ""
        """What was not sent: it may begin a stop string."""
        self._sent = self._pending = 0

    def __call__(self, ids: list[int]) -> None:
        self._pending += len(ids)
        self._tail += self._pieces.next(ids)
        stops = [place for string in self._stop if (place := self._tail.find(string)) >= 0]
        end = min(stops, default=len(self._tail) - self._hold)
        if end > 0:
            self._send(self._tail[:end])
            self._tail = self._tail[end:]

    def finish(self, text: str) -> None:
        """The whole text is known: send what waited."""
        if len(text) > self._sent or self._pending:
            self._send(text[self._sent :])

    def _send(self, piece: str) -> None:
        self._on_chunk(piece, self._pending)
        self._sent, self._pending = self._sent + len(piece), 0


class TextOutput:
    """The text of one output. ``stop`` finds its end, ``emit`` hands it on; each is None where it is not needed.
    ``ends`` finds the end among the tokens after ``begun``, those that the output has already.

    A thought that the prompt opens begins with its mark here, too, so that it is known for one.
    """

    def __init__(self, chat: Chat, sampling: Sampling, on_chunk: OnChunk | None, begun: Sequence[int] = ()) -> None:
        from ianvs_specdec.engine.stopping import StopStrings

        self._chat = chat
        self._opened, self._begun = "", False
        self.stop = StopStrings(chat.text, sampling.stop) if sampling.stop else None
        self.ends = self.stop and self.stop.after(begun)
        self.emit = TextStream(chat.text, sampling.stop, self._marked(on_chunk)) if on_chunk is not None else None

    def follow(self, prompt_ids: list[int]) -> None:
        """Say what the output follows, before its first token."""
        self._opened = self._chat.opened(prompt_ids)

    def _marked(self, on_chunk: OnChunk) -> OnChunk:
        def put_out(piece: str, tokens: int) -> None:
            on_chunk(piece if self._begun else self._opened + piece, tokens)
            self._begun = True

        return put_out

    def finish(self, ids: list[int]) -> str:
        """The text of the whole output, whose rest is handed on."""
        text = self._chat.text(ids)
        text = self.stop.trim(text) if self.stop is not None else text
        if self.emit is not None:
            self.emit.finish(text)
        return self._opened + text

    def tell(self, ids: list[int], text: str, trace: Trace, logprobs: bool) -> None:
        """What of the output, which ``finish`` made ``text``, was thought goes into the trace, and the characters of
        its tokens, where ``logprobs`` are told."""
        start = answer_start(text)
        if not (logprobs or start != 0):
            return
        characters = [len(piece) for piece in self._chat.pieces(ids)]
        if characters:
            characters[0] += len(self._opened)
        if logprobs:
            trace.characters = characters
        ends = itertools.accumulate(characters)
        trace.thinking = len(ids) if start is None else sum(end <= start for end in ends)
        if start:
            given = itertools.accumulate((tokens for _, tokens in trace.chunks), initial=len(ids) - trace.tokens)
            times = zip(itertools.islice(given, 1, None), trace.chunks, strict=True)
            trace.answered = next((chunk[0] for tokens, chunk in times if tokens > trace.thinking), None)
