"""Back ends that tokenize prompts in this process, and models in Hugging Face format that run in it."""

from __future__ import annotations

import gc
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from ianvs_specdec.backends.base import LLM, NO_HINTS, DType, OnChunk, PromptInput, Threads, Truncate
from ianvs_specdec.backends.prompts import (
    Chat,
    TextOutput,
    end_ids,
    local_folder,
    model_digest,
    model_folder,
    vocabulary_of,
)
from ianvs_specdec.backends.quantization import Quantization, loading_arguments
from ianvs_specdec.backends.top_logprobs import letters_of
from ianvs_specdec.common.errors import UserError, missing_package_error, optional_import
from ianvs_specdec.common.settings import Settings, Text
from ianvs_specdec.common.types import Completion, Hints, Sampling, Trace
from ianvs_specdec.models import loading
from ianvs_specdec.models.rotary import window_of
from ianvs_specdec.models.validation import check_model, check_tokenizer
from ianvs_specdec.records.identity import FileDigests

WARM_UP = Sampling(max_tokens=8)
WARM_UP_CHAT: PromptInput = [{"role": "user", "content": "1 2 3 1 2 3"}]


def instructions() -> dict[str, str]:
    """The instruction set that torch uses, and the limit of oneDNN's, if it is limited."""
    import torch

    limits = [os.environ[name] for name in ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA") if os.environ.get(name)]
    limit = {"instructions_limit": limits[0]} if limits else {}
    return {"instructions": torch.backends.cpu.get_cpu_capability(), **limit}


class TokenizingLLM(LLM):
    """A back end that tokenizes prompts in this process, and loads its model with the first request."""

    scores: ClassVar[bool] = False
    """Whether ``Hints.top`` and ``Hints.scored`` add to ``Trace.confidence``."""

    truncate_prompts: bool
    """See ``prompts.Chat``."""

    _chat: Chat | None = None

    def generate(
        self, messages: PromptInput, sampling: Sampling, on_chunk: OnChunk | None = None, hints: Hints = NO_HINTS
    ) -> Completion:
        self.check(sampling)
        self.load()
        # A loaded model may know more about its hardware.
        self.check(sampling)
        # Truncated tokens would have no scores.
        truncate = self.truncate_prompts and not hints.scored
        return self._answer(messages, sampling, on_chunk, hints, truncate=truncate)

    @property
    def chat(self) -> Chat:
        """The tokenizer of the loaded model."""
        assert self._chat is not None
        return self._chat

    @abstractmethod
    def _answer(
        self, asked: PromptInput, sampling: Sampling, on_chunk: OnChunk | None, hints: Hints, *, truncate: bool
    ) -> Completion:
        """``generate`` with a loaded model. ``truncate``: truncate a prompt that exceeds the window."""


def require_tokenizer(llm: LLM) -> TokenizingLLM:
    """Return ``llm``. Raises UserError if the back end does not tokenize prompts in this process."""
    if not isinstance(llm, TokenizingLLM):
        raise UserError(f"the back end {llm.backend} takes chats only: ask /v1/chat/completions", key="backend")
    return llm


class LocalOptions(Settings):
    """Options of all back ends that load a model in this process."""

    dtype: DType = Field("auto", description="the type of the weights; auto = as stored")
    device: Text = Field("auto", description="cpu, cuda, cuda:1, mps; auto = the first accelerator, else the CPU")
    threads: Threads | None = None
    quantization: Quantization | None = Field(None, description="round the weights to few bits")
    truncate_prompts: Truncate = False


class LocalLLM(TokenizingLLM):
    """A causal LM in Hugging Face format, run by transformers or by our engine. Prompts: see ``prompts.Chat``."""

    local: ClassVar[bool] = True
    letters: ClassVar[bool] = True
    method: str
    """The decoding method, as recorded with each answer."""

    engine: str = "auto"
    """The engine of the baseline, one of ``ENGINES``."""

    Options: ClassVar[type[Settings]] = LocalOptions

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.truncate_prompts = self.options.truncate_prompts
        self._model: Any = None
        self._eos_ids: frozenset[int] = frozenset()
        self._default_threads = 0
        self._held = 0
        self._loading = threading.Lock()

    @property
    def device_name(self) -> str:
        return str(getattr(self.options, "device", "auto"))

    @property
    def quantization(self) -> str | None:
        return None if self.options.quantization in (None, "none") else str(self.options.quantization)

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "method": self.method,
            "options": {},
            "model": model_digest(self.model, digests),
            "dtype": self.options.dtype,
            "device": self.device_name,
            "threads": self.options.threads,
            **({"quantization": self.quantization} if self.quantization else {}),
        }

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        # Coupled sampling is reproduced token for token by coupled sampling only.
        coupled = getattr(self.options, "acceptance", None) == "coupled"
        options = {"acceptance": "coupled"} if coupled else {}
        own = {"backend": "autoregressive", "method": "autoregressive", "options": options}
        return {**self.identity(digests), **own, **self.computed_by()}

    def computed_by(self) -> dict[str, str]:
        """The engine in journal keys. On a GPU it is always torch."""
        return {} if self.device_name.startswith(("cuda", "mps")) else {"engine": self.engine}

    def check_files(self) -> None:
        self._check_device()
        if (folder := local_folder(self.model)) is not None:
            check_model(folder, what=f"the model {self.model}", key="model")
            check_tokenizer(folder, what=f"the model {self.model}", key="model")

    def load(self) -> None:
        with self._loading:
            if self._model is not None:
                return
            try:
                self._load()
            except BaseException:
                self.close()
                raise

    @optional_import()
    def _load(self) -> None:
        folder = model_folder(self.model)
        import torch
        import transformers

        what = f"the model {self.model}"
        self._check_device()
        self._default_threads = self._default_threads or torch.get_num_threads()
        placed = loading_arguments(self.quantization, folder, self._device())
        dtype = self.options.dtype if self.options.dtype == "auto" else getattr(torch, self.options.dtype)
        model = loading.load(loading.CAUSAL, folder, what=what, key="model", dtype=dtype, **placed)
        try:
            if not placed:
                model.to(self._device())
            what = f"the tokenizer of {self.model}"
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:
            raise missing_package_error(error) or loading.loading_error(what, error, "model") from error
        window = window_of(model.config.get_text_config())
        self._chat, self._model = Chat(tokenizer, window, vocabulary_of(model.config)), model
        self._eos_ids = end_ids(model.generation_config, tokenizer)
        self._prepare()
        self._warm_up()
        self._held = self._weights_memory()

    def _warm_up(self) -> None:
        self._answer(WARM_UP_CHAT, WARM_UP, None, NO_HINTS, truncate=True)

    def _check_device(self) -> None:
        if self.device_name != "auto":
            loading.check_device(self.device_name)

    def _device(self) -> str:
        import torch

        if self.device_name != "auto":
            return self.device_name
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"

    @abstractmethod
    def _prepare(self) -> None:
        """Set up what decodes with the loaded model."""

    @abstractmethod
    def _decode(
        self, prompt_ids: list[int], sampling: Sampling, output: TextOutput, prediction: list[int], hints: Hints
    ) -> tuple[list[int], str, Trace]:
        """Return output ids (the end token included), finish reason and trace."""

    def _answer(
        self,
        asked: PromptInput,
        sampling: Sampling,
        on_chunk: OnChunk | None,
        hints: Hints,
        *,
        truncate: bool,
        most: int | None = None,
        begun: Sequence[int] = (),
    ) -> Completion:
        """``most``: stop after this many tokens. ``begun``: the first tokens of the answer."""
        started = time.perf_counter()
        prompt_ids, truncated = self._prompt(asked, sampling, hints, truncate=truncate)
        chat = self.chat
        prediction = chat.ids(hints.prediction)
        output = TextOutput(chat, sampling, on_chunk, begun)
        output.begin(asked, prompt_ids)
        offset = time.perf_counter() - started
        prompt_ids = [*prompt_ids, *begun]
        ids, finish_reason, trace = list(begun), "length", Trace()
        if not (begun and len(prompt_ids) == chat.window):
            left = (sampling.first(most) if most else sampling).after(len(begun))
            rest, finish_reason, trace = self._decode(prompt_ids, left, output, prediction, hints)
            ids += rest
        trace.chunks = [(seconds + offset, tokens) for seconds, tokens in trace.chunks]
        text = output.finish(ids, trace, logprobs=sampling.logprobs)
        if sampling.logprobs:
            trace.letters, trace.first = letters_of((chat.text([i]), value) for i, value in trace.first), []
            trace.top = [[(chat.piece(int(i)), value) for i, value in token] for token in trace.top]
        return Completion(text, ids, len(prompt_ids), len(ids), finish_reason, trace, truncated)

    def _prompt(
        self, asked: PromptInput, sampling: Sampling, hints: Hints = NO_HINTS, *, truncate: bool
    ) -> tuple[list[int], int]:
        """As ``Chat.prompt``. Sets the number of torch threads of this Python thread."""
        self._set_threads()
        return self.chat.prompt(asked, sampling, hints, truncate=truncate)

    def _set_threads(self) -> None:
        # torch has one number per Python thread.
        import torch

        if torch.get_num_threads() != (threads := self.options.threads or self._default_threads):
            torch.set_num_threads(threads)

    def memory(self) -> int | None:
        """Bytes of the weights in memory, including packed copies and the drafter; shared tensors count once."""
        return None if self._model is None else self._held

    @abstractmethod
    def _weights_memory(self) -> int:
        """Bytes of the weights of the model and the drafter, after the warm-up."""

    def hardware(self) -> Mapping[str, Any]:
        import torch

        device = str(self._model.device)
        name = torch.cuda.get_device_name(self._model.device) if device.startswith("cuda") else device
        return {**super().hardware(), "device": name, "threads": torch.get_num_threads(), **instructions()}

    def close(self) -> None:
        if self._model is None:
            return
        self._model = self._chat = None
        self._release()
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _release(self) -> None:
        """Undo ``_prepare``."""
