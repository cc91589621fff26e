"""Model files, chat templates and tokenization: from chats to token ids, and from token ids to text.

transformers is imported with the first tokenizer.
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

from ianvs_specdec.backends.base import LLM, NO_HINTS, OnChunk, PromptInput
from ianvs_specdec.benchmarks.reasoning import answer_start, open_tag, reasoning_tags
from ianvs_specdec.common.errors import (
    ContextWindowError,
    PromptError,
    RequestCancelledError,
    UserError,
    optional_import,
)
from ianvs_specdec.common.types import Hints, Sampling, Trace
from ianvs_specdec.models.gguf.cache import IMPORT_VERSION, gguf_of, hf_folder
from ianvs_specdec.models.json_files import without_bom
from ianvs_specdec.models.loading import loading_error
from ianvs_specdec.models.rotary import window_of
from ianvs_specdec.models.templates import read_template, render, template_error
from ianvs_specdec.records.identity import FileDigests, digest

MAX_OPENING_TOKENS = 32
"""Tokens at the end of a prompt that may contain the opening tag of a thought."""
MAX_VOCABULARY = 1 << 31
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
        reason = f"there is no model folder {model}{where}, and it is not a name on the Hugging Face hub (org/name)"
        raise UserError(reason, key=key)


def model_folder(model: str, *, key: str = "model") -> Path:
    """The folder with the model's files: downloaded for a name on the hub, imported for a GGUF file."""
    check_model(model, key=key)
    if (folder := local_folder(model, key=key)) is not None:
        return folder
    with optional_import():
        import huggingface_hub

    # No pickled weights: loading them runs code.
    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(huggingface_hub.snapshot_download(model, allow_patterns=wanted))
    except Exception as error:
        reason = f"there is no model folder {model}, and it cannot be downloaded from the Hugging Face hub: {error}"
        raise UserError(reason, key=key) from error


def local_folder(model: str, *, key: str = "model") -> Path | None:
    """``model_folder`` without a download: None for a name on the hub."""
    path = hf_folder(Path(model), key=key)
    return without_bom(path) if path.is_dir() else None


def model_digest(model: str, digests: FileDigests, *more: str) -> str:
    """Digest of the model's files in journal keys; of a GGUF file, its own and the version of the import.

    ``more``: see ``FileDigests.folder``.
    """
    file = gguf_of(Path(model))
    if file is None:
        return digests.folder(model_folder(model), *more)
    return digest([digests.file(file), IMPORT_VERSION])


def chat_template(llm: LLM) -> str:
    """The chat template of a back end's model, "" if there is none or a server applies it. Raises UserError."""
    if llm.truncate_prompts is None:
        return ""
    return read_template(gguf_of(Path(llm.model)) or model_folder(llm.model))


class Chat:
    """Prompts of chats as token ids, and output ids as text. Thread-safe.

    Prompts come from the tokenizer's chat template. Without one they are a plain transcript: each message as
    ``Role: content`` and a blank line, then ``Assistant:``. ``window`` is the context window in tokens, None for no
    limit; ``vocabulary`` is the number of token ids that the model knows, None if the engine checks ids itself.

    A prompt fits if it leaves at least one token of the window for the answer. One that does not fit is refused, or,
    with ``truncate``, loses its oldest tokens until ``max_tokens``, but at most half of the window, remain.
    """

    def __init__(self, tokenizer: Any, window: int | None, vocabulary: int | None = None) -> None:
        self.tokenizer, self.window, self._vocabulary = tokenizer, window, vocabulary
        # Tokenizers are not thread-safe.
        self._encoding = threading.Lock()
        # Several samples of a request have the same text, which may take a second.
        self._encode = functools.lru_cache(4)(
            lambda text, special: array("i", tokenizer(text, add_special_tokens=special)["input_ids"])
        )
        added = getattr(tokenizer, "added_tokens_decoder", {})
        special = {number: token.content for number, token in added.items() if token.special}
        known = reasoning_tags(special.values())
        self._marks = frozenset(number for number, content in special.items() if content in known)
        self._skipped = special.keys() - self._marks
        self.piece = functools.cache(lambda number: self.text([number]))
        """The text of a single token."""

    def prompt(
        self, asked: PromptInput, sampling: Sampling, hints: Hints = NO_HINTS, *, truncate: bool
    ) -> tuple[list[int], int]:
        """The prompt's ids, and the number of truncated tokens.

        Raises ContextWindowError for one that does not fit, unless ``truncate``, and PromptError for one that is empty
        or has ids that the model does not know.
        """
        ids = self.encoded(asked, sampling, hints)
        if not ids:
            raise PromptError("a prompt must have at least one token")
        if self.window is None or len(ids) < self.window:
            return ids, 0
        if not truncate:
            reason = (
                f"the prompt has {len(ids)} tokens and leaves no room in the model's context window of {self.window}"
            )
            # Truncated tokens would have no scores.
            cut = "" if hints.scored else ", or cut such prompts (truncate_prompts: true)"
            advice = f"shorten it, or take a model with a longer window{cut}"
            raise ContextWindowError(f"{reason}: {advice}", [(0.0, ContextWindowError.KIND)])
        truncated = len(ids) - (self.window - min(sampling.max_tokens, self.window // 2))
        return ids[truncated:], truncated

    def encoded(
        self, asked: PromptInput, sampling: Sampling, hints: Hints = NO_HINTS, *, special: bool | None = None
    ) -> list[int]:
        """The ids of a chat, a text or ids.

        ``special``: whether to add the tokenizer's special tokens; None = as for generation. Raises PromptError as
        ``prompt``.
        """
        if isinstance(asked, list) and self.tokenizer.chat_template:
            ids = self.ids(render(self.tokenizer, asked, sampling), hints, special=bool(special))
            if not ids:
                raise template_error("it and the tokenizer make no token")
            return ids
        if isinstance(asked, list):
            transcript = "".join(f"{message['role'].capitalize()}: {message['content']}\n\n" for message in asked)
            asked = f"{transcript}Assistant:"
        return self.ids(asked, hints, special=special is not False) if isinstance(asked, str) else self._checked(asked)

    def _checked(self, ids: Sequence[int]) -> list[int]:
        vocabulary = self._vocabulary or MAX_VOCABULARY
        if ids and 0 <= min(ids) <= max(ids) < vocabulary:
            return list(ids)
        raise PromptError(f"a prompt must have at least one token, each from 0 to {vocabulary - 1}")

    def ids(self, text: str, hints: Hints = NO_HINTS, *, special: bool = False) -> list[int]:
        """The ids of ``text``; ``special`` adds the tokens that begin or end a sequence."""
        with self._encoding:
            if hints.cancelled is not None and hints.cancelled():
                raise RequestCancelledError
            ids = list(self._encode(text, special))
        if self._vocabulary is not None and ids and max(ids) >= self._vocabulary:
            reason = f"the tokenizer makes the token {max(ids)} of this text, the model knows those below "
            raise UserError(f"{reason}{self._vocabulary}: the tokenizer is of another model", key="model")
        return ids

    def text(self, ids: list[int]) -> str:
        """The text of ids without special tokens, except those that mark thoughts."""
        marked = not self._marks.isdisjoint(ids)
        ids = [i for i in ids if i not in self._skipped] if marked else ids
        text: str = self.tokenizer.decode(ids, skip_special_tokens=not marked)
        return text

    def whole_text(self, ids: Sequence[int]) -> str:
        """The text of ids with special tokens. Raises PromptError for ids that the model does not know."""
        text: str = self.tokenizer.decode(self._checked(ids), skip_special_tokens=False)
        return text

    def open_tag(self, prompt_ids: list[int]) -> str:
        """The opening tag of a thought at the end of the prompt, "" if there is none."""
        return open_tag(self.tokenizer.decode(prompt_ids[-MAX_OPENING_TOKENS:], skip_special_tokens=False))

    def pieces(self, ids: list[int]) -> list[str]:
        """The text that each token adds to the text of all; "" for a special token."""
        # With most tokenizers this is the text of the single token; decoding in context takes ten times as long.
        alone = [self.piece(i) for i in ids]
        if "".join(alone) == self.text(ids):
            return alone
        from ianvs_specdec.engine.stopping import TextPieces

        pieces = TextPieces(self.text)
        return [pieces.next([number]) for number in ids]


def load_chat(folder: Path, model: str, max_window: int) -> tuple[Chat, list[int]]:
    """The tokenizer of the model in ``folder``, with a window of at most ``max_window``, and the end tokens."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
        try:
            generation = transformers.GenerationConfig.from_pretrained(folder)
        except OSError:
            generation = transformers.GenerationConfig.from_model_config(config)
    except Exception as error:
        raise loading_error(f"the tokenizer of {model}", error, "model") from error
    window = min(window_of(config.get_text_config()) or max_window, max_window)
    return Chat(tokenizer, window, vocabulary_of(config)), sorted(end_ids(generation, tokenizer))


def vocabulary_of(config: Any) -> int | None:
    """The vocabulary size in a configuration of transformers."""
    vocabulary: int | None = getattr(config.get_text_config(), "vocab_size", None)
    return vocabulary


def end_ids(generation_config: Any, tokenizer: Any) -> frozenset[int]:
    """The ids that end an output."""
    configured = generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in [*ids, tokenizer.eos_token_id] if i is not None)


class TextStream:
    """Streams token ids as text. Text that may still change, or begin a stop string, is held back."""

    def __init__(self, decode: Callable[[list[int]], str], stop: tuple[str, ...], on_chunk: OnChunk) -> None:
        from ianvs_specdec.engine.stopping import TextPieces

        self._pieces = TextPieces(decode)
        self._stop, self._on_chunk = [string for string in stop if string], on_chunk
        self._hold = max(map(len, self._stop), default=1) - 1
        self._held = ""
        self._sent = self._pending = 0

    def __call__(self, ids: list[int]) -> None:
        self._pending += len(ids)
        self._held += self._pieces.next(ids)
        stops = [place for string in self._stop if (place := self._held.find(string)) >= 0]
        end = min(stops, default=len(self._held) - self._hold)
        if end > 0:
            self._send(self._held[:end])
            self._held = self._held[end:]

    def finish(self, text: str) -> None:
        """Send the rest of ``text``, which is the whole output."""
        if len(text) > self._sent or self._pending:
            self._send(text[self._sent :])

    def _send(self, piece: str) -> None:
        self._on_chunk(piece, self._pending)
        self._sent, self._pending = self._sent + len(piece), 0


class TextOutput:
    """The text of one output.

    ``stop`` finds its end in all of its tokens and ``ends`` in those after ``begun``, both None without stop strings;
    ``emit`` streams tokens, None without ``on_chunk``. If the prompt opens a thought, the text begins with its tag.
    """

    def __init__(self, chat: Chat, sampling: Sampling, on_chunk: OnChunk | None, begun: Sequence[int] = ()) -> None:
        from ianvs_specdec.engine.stopping import StopStrings

        self._chat = chat
        self._opened = self._unsent = ""
        self.stop = StopStrings(chat.text, sampling.stop) if sampling.stop else None
        self.ends = self.stop and self.stop.after(begun)
        self.emit = TextStream(chat.text, sampling.stop, self._prefixed(on_chunk)) if on_chunk is not None else None

    def begin(self, asked: PromptInput, prompt_ids: list[int]) -> None:
        """Set the prompt before the first token. Only chats open thoughts."""
        if isinstance(asked, list):
            self._opened = self._unsent = self._chat.open_tag(prompt_ids)

    def _prefixed(self, on_chunk: OnChunk) -> OnChunk:
        def emit(piece: str, tokens: int) -> None:
            piece, self._unsent = self._unsent + piece, ""
            on_chunk(piece, tokens)

        return emit

    def finish(self, ids: list[int], trace: Trace, *, logprobs: bool) -> str:
        """Stream the rest, add thoughts (and with ``logprobs`` characters per token) to ``trace``. Returns the text."""
        text = self._chat.text(ids)
        text = self.stop.trim(text) if self.stop is not None else text
        if self.emit is not None:
            self.emit.finish(text)
        text = self._opened + text
        start = answer_start(text)
        if not (logprobs or start != 0):
            return text
        characters = [len(piece) for piece in self._chat.pieces(ids)]
        if characters:
            characters[0] += len(self._opened)
        if logprobs:
            trace.characters = characters
        ends = itertools.accumulate(characters)
        trace.thinking = len(ids) if start is None else sum(end <= start for end in ends)
        if start:
            counts = itertools.accumulate((tokens for _, tokens in trace.chunks), initial=len(ids) - trace.tokens)
            times = zip(itertools.islice(counts, 1, None), trace.chunks, strict=True)
            trace.answered = next((chunk[0] for tokens, chunk in times if tokens > trace.thinking), None)
        return text
