"""Models that run in this process: a Hugging Face folder, its tokenizer and chat template, truncation, warm-up."""

from __future__ import annotations

import gc
import re
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from ianvs_specdec.errors import UserError, unknown
from ianvs_specdec.identity import FileDigests
from ianvs_specdec.llm.base import LLM, NO_HINTS, OnChunk
from ianvs_specdec.types import Completion, Hints, Message, Sampling, Trace

DTYPES = ("auto", "float32", "bfloat16", "float16")
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
WARM_UP = Sampling(max_tokens=8)

Emit = Callable[[list[int]], None]
"""Called with the token ids of each chunk at the moment they are final."""


def check_model(model: str) -> None:
    """Raise UserError unless ``model`` is a model folder or can be a name on the Hugging Face hub."""
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"the model folder {model} has no config.json: it is not a Hugging Face model", key="model")
    elif not HUB_NAME.fullmatch(model):
        where = f" (looked in {Path.cwd()})" if not folder.is_absolute() else ""
        raise UserError(
            f"there is no model folder {model}{where}, and it is not a name on the Hugging Face hub (org/name)",
            key="model",
        )


class LocalLLM(LLM):
    """A causal LM in Hugging Face format, run by transformers or by our engine.

    ``dtype`` "auto" is the one the weights are stored in; ``device`` "auto" is the first accelerator, else the CPU;
    ``threads`` limits the CPU threads of one operation (None = torch's default).

    Prompts come from the tokenizer's chat template. A model without one gets a plain transcript: each message as
    ``Role: content`` and a blank line, then ``Assistant:``. A prompt longer than the context window loses its oldest
    tokens, so that ``max_tokens``, but at most half of the window, remain for the answer; the answer says how many
    (``truncated``).
    """

    local: ClassVar[bool] = True
    method: ClassVar[str]
    """How the back end decodes, as recorded with each answer."""
    FILES: ClassVar[tuple[str, ...]] = ("head", "datastore", "draft")
    """Options that name files or folders whose contents matter."""

    def __init__(
        self, model: str, *, dtype: str = "auto", device: str = "auto", threads: int | None = None, **options: Any
    ) -> None:
        super().__init__(model)
        if dtype not in DTYPES:
            raise unknown("dtype", dtype, DTYPES, key="dtype")
        if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
            raise UserError(f"threads must be a whole number from 1, not {threads!r}", key="threads")
        self.dtype, self.device_name, self.threads, self.options = dtype, device, threads, options
        self._model: Any = None
        self._tokenizer: Any = None
        self._eos_ids: frozenset[int] = frozenset()
        self._default_threads = 0

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return ("dtype", "device", "threads")

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "method": self.method,
            "options": self._option_identity(digests),
            "model": digests.folder(self._folder()),
            "dtype": self.dtype,
            "device": self.device_name,
            "threads": self.threads,
        }

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        # Coupled sampling is reproduced token for token by coupled sampling only.
        options = {key: value for key, value in self.options.items() if (key, value) == ("acceptance", "coupled")}
        return {**self.identity(digests), "backend": "specdec", "method": "none", "options": options}

    def _option_identity(self, digests: FileDigests) -> dict[str, Any]:
        """The options, with contents in place of paths."""
        files = {key: Path(value) for key, value in self.options.items() if key in self.FILES}
        contents = {key: digests.folder(path) if path.is_dir() else digests.file(path) for key, path in files.items()}
        return {**self.options, **contents}

    def _folder(self) -> Path:
        check_model(self.model)
        folder = Path(self.model)
        if folder.is_dir():
            return folder
        import huggingface_hub

        # Only what a model consists of: no pickled weights, which run code when they are loaded.
        wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
        try:
            return Path(huggingface_hub.snapshot_download(self.model, allow_patterns=wanted))
        except Exception as error:
            raise UserError(
                f"there is no model folder {self.model}, and it cannot be had from the Hugging Face hub: {error}",
                key="model",
            ) from error

    def load(self) -> None:
        if self._model is not None:
            return
        folder = self._folder()
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._default_threads = self._default_threads or torch.get_num_threads()
        dtype = self.dtype if self.dtype == "auto" else getattr(torch, self.dtype)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
            model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
            model.to(self._device()).eval()
        except Exception as error:
            # Damaged files raise whatever their reader has, safetensors' and tokenizers' own exceptions among them.
            reason = " ".join(str(error).split()) or type(error).__name__
            raise UserError(f"cannot load the model {self.model}: {reason}", key="model") from error
        self._tokenizer, self._model = tokenizer, model
        self._eos_ids = self._end_ids()
        self._prepare()
        self.generate([{"role": "user", "content": "1 2 3 1 2 3"}], WARM_UP)

    def _device(self) -> str:
        import torch

        if self.device_name != "auto":
            return self.device_name
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"

    def _end_ids(self) -> frozenset[int]:
        configured = self._model.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return frozenset(i for i in [*ids, self._tokenizer.eos_token_id] if i is not None)

    @abstractmethod
    def _prepare(self) -> None:
        """What the back end needs once the model is there."""

    @abstractmethod
    def _decode(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop: Callable[[list[int]], int | None] | None,
        emit: Emit | None,
        prediction: list[int],
        task: str,
    ) -> tuple[list[int], str, Trace]:
        """Output ids with the one that ended the output, finish reason, trace from the call on."""

    def generate(
        self,
        messages: list[Message],
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
    ) -> Completion:
        self.load()
        import torch

        from ianvs_specdec.decoding.stopping import StopStrings

        if torch.get_num_threads() != (wanted := self.threads or self._default_threads):
            torch.set_num_threads(wanted)
        started = time.perf_counter()
        prompt_ids, truncated = self._prompt(messages, sampling)
        prediction = self._tokenizer(hints.prediction, add_special_tokens=False)["input_ids"]
        stop = StopStrings(self._text, sampling.stop) if sampling.stop else None
        emit = _TextStream(self._text, sampling.stop, on_chunk) if on_chunk is not None else None
        offset = time.perf_counter() - started
        ids, finish_reason, trace = self._decode(prompt_ids, sampling, stop, emit, prediction, hints.task)
        trace.chunks = [(seconds + offset, tokens) for seconds, tokens in trace.chunks]
        text = self._text(ids)
        text = stop.trim(text) if stop is not None else text
        if emit is not None:
            emit.finish(text)
        return Completion(text, ids, len(prompt_ids), len(ids), finish_reason, trace, truncated)

    def _text(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def _prompt(self, messages: list[Message], sampling: Sampling) -> tuple[list[int], int]:
        if self._tokenizer.chat_template:
            text = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            transcript = "".join(f"{message['role'].capitalize()}: {message['content']}\n\n" for message in messages)
            ids = self._tokenizer(f"{transcript}Assistant:")["input_ids"]
        window = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        truncated = max(0, len(ids) - (window - min(sampling.max_tokens, window // 2))) if window else 0
        return list(ids[truncated:]), truncated

    def hardware(self) -> Mapping[str, Any]:
        import torch

        device = str(self._model.device)
        name = torch.cuda.get_device_name(self._model.device) if device.startswith("cuda") else device
        return {**super().hardware(), "device": name, "threads": torch.get_num_threads()}

    def close(self) -> None:
        if self._model is None:
            return
        self._model = self._tokenizer = None
        self._release()
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _release(self) -> None:
        """Drop what ``_prepare`` made."""


class _TextStream:
    """Turns chunks of token ids into chunks of text. What may still change or be cut off waits for a later chunk."""

    def __init__(self, decode: Callable[[list[int]], str], stop: tuple[str, ...], on_chunk: OnChunk) -> None:
        self._decode, self._on_chunk = decode, on_chunk
        self._hold = max((len(string) for string in stop), default=1) - 1
        self._ids: list[int] = []
        self._sent = 0
        self._pending = 0

    def __call__(self, ids: list[int]) -> None:
        self._ids += ids
        self._pending += len(ids)
        text = self._decode(self._ids)
        # An unfinished character decodes to U+FFFD; the end of the text may yet turn out to begin a stop string.
        end = len(text.rstrip("\ufffd")) - self._hold
        if end > self._sent:
            self._send(text[self._sent : end])

    def finish(self, text: str) -> None:
        """The whole text is known: send what waited."""
        if len(text) > self._sent or self._pending:
            self._send(text[self._sent :])

    def _send(self, piece: str) -> None:
        self._on_chunk(piece, self._pending)
        self._sent, self._pending = self._sent + len(piece), 0
