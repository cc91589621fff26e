"""Back end ``llamacpp``: llama.cpp in this process, with GGUF files or exported Hugging Face folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ianvs_specdec import lengths
from ianvs_specdec.backends.base import Threads, Truncate
from ianvs_specdec.backends.prompts import Chat, check_model, load_chat, model_digest, model_folder
from ianvs_specdec.backends.specdec import EngineLLM
from ianvs_specdec.common.errors import UserError, optional_import
from ianvs_specdec.common.settings import Count, Settings
from ianvs_specdec.drafters.options import Acceptance
from ianvs_specdec.models.gguf.cache import gguf_of, user_cache
from ianvs_specdec.models.gguf.exporting import export_gguf
from ianvs_specdec.records.identity import FileDigests, machine, usable_processors, version

EXPORT_VERSION = 2
"""Part of the name of exported files: earlier versions are not reused."""


class LlamaCppOptions(Settings):
    threads: Threads | None = None
    n_ctx: Count | None = Field(None, description="the context window; by default the model's own, at most 8192")
    gguf_type: Literal["f32", "f16", "bf16", "q8_0"] = Field("f16", description="the weights of an exported model")
    gpu_layers: Annotated[int, Field(ge=-1)] = Field(0, description="layers that a GPU takes; -1 = all")
    prompt_lookup: Annotated[int, Field(ge=0)] = Field(0, description="tokens to draft from earlier text; 0 = none")
    acceptance: Acceptance = Field("rejection", description="how sampled drafts are accepted")
    truncate_prompts: Truncate = False


class LlamaCppLLM(EngineLLM):
    """A model run by llama.cpp under our decoding loop.

    ``model``: a GGUF file, or a Hugging Face folder or name, which is exported once into the job's folder.
    """

    backend: ClassVar[str] = "llamacpp"
    method = "prompt_lookup"
    # Its cache holds one sequence.
    concurrent: ClassVar[bool] = False
    # The constructor checks the model: it may be a file.
    local: ClassVar[bool] = False

    Options: ClassVar[type[Settings]] = LlamaCppOptions

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._length = lengths.create(f"fixed:{self.options.prompt_lookup}")
        check_model(model)
        self._file = gguf_of(Path(model))

    def check_files(self) -> None:
        if self._file is None:
            super().check_files()

    @classmethod
    def check_encode(cls) -> None:
        # llama.cpp does not return hidden states.
        super(EngineLLM, cls).check_encode()

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "model": digests.file(self._file) if self._file else model_digest(self.model, digests),
            **({} if self._file else {"gguf_type": self.options.gguf_type}),
            "n_ctx": self.options.n_ctx,
            "gpu_layers": self.options.gpu_layers,
            "threads": self.options.threads,
            "prompt_lookup": self.options.prompt_lookup,
            "acceptance": self.options.acceptance,
        }

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        """The same model in llama.cpp without drafts: other engines round differently."""
        return {**self.identity(digests), "prompt_lookup": 0}

    @optional_import()
    def _load(self) -> None:
        from ianvs_specdec.backends.llamacpp.model import GgufTokenizer, LlamaCppModel, binding

        binding()
        import torch

        from ianvs_specdec import drafters
        from ianvs_specdec.engine.loop import Engine

        self._default_threads = self._default_threads or torch.get_num_threads()
        path = self._file or self._exported()
        threads = self.options.threads or usable_processors()
        model = LlamaCppModel(path, n_ctx=self.options.n_ctx, threads=threads, gpu_layers=self.options.gpu_layers)
        if self._file:
            tokenizer = GgufTokenizer(model)
            self._chat, self._eos_ids = Chat(tokenizer, model.window, model.vocabulary), tokenizer.ends
        else:
            # The folder's own tokenizer: the same prompts as with other back ends.
            self._chat, ends = load_chat(model_folder(self.model), self.model, model.window)
            self._eos_ids = frozenset(ends)
        self._model = self._target = model
        self._drafter = drafters.create(self.method, {})
        self._serve(Engine(model, self._length, max_batch_size=1))
        self._warm_up()

    def _exported(self) -> Path:
        """The GGUF file of the model folder, exported if it is missing. Its name identifies its contents."""
        folder = model_folder(self.model)
        result = os.environ.get("RESULT_SAVED_URL")
        place = (Path(result).absolute().parent if result else user_cache()) / "gguf"
        try:
            place.mkdir(parents=True, exist_ok=True)
            digest = FileDigests(place / "model_files.json").folder(folder)
            path = place / f"{folder.resolve().name}-{digest[:16]}-{self.options.gguf_type}-{EXPORT_VERSION}.gguf"
            if not path.is_file():
                export_gguf(folder, path, self.options.gguf_type)
        except OSError as error:
            raise UserError(f"cannot export the model to {place}: {error.strerror or error}", key="model") from error
        return path

    def memory(self) -> int | None:
        return int(self._model.library_bytes) if self._model is not None else None

    def hardware(self) -> Mapping[str, Any]:
        return {
            **machine(),
            "device": f"llama.cpp, {self.options.gpu_layers} layers on a GPU"
            if self.options.gpu_layers
            else "llama.cpp, cpu",
            "threads": self.options.threads or usable_processors(),
            "llama_cpp": version("llama-cpp-python"),
            **({"instructions": self._model.instructions()} if self._model is not None else {}),
        }

    def _release(self) -> None:
        target = self._target
        super()._release()
        if target is not None:
            target.close()
