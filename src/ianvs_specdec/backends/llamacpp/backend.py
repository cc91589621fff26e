"""llama.cpp in this process: GGUF files, or Hugging Face folders exported to one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from ianvs_specdec.backends.answering import chat_of
from ianvs_specdec.backends.prompts import Chat, check_model, model_folder
from ianvs_specdec.backends.specdec import EngineLLM
from ianvs_specdec.common.errors import UserError, packages, unknown
from ianvs_specdec.models.gguf.gguf import TYPES, export_gguf
from ianvs_specdec.records.identity import FileDigests, machine, usable_processors, version

EXPORT_VERSION = 2
"""Part of the name of an exported file, so that a file of an earlier exporter is not taken for one of this."""


class LlamaCppLLM(EngineLLM):
    """A model run by llama.cpp, decoded by our loop.

    ``model`` is a ``.gguf`` file, or a Hugging Face folder or name, which is exported with weights of ``gguf_type`` to
    a file in the job's folder, once. ``n_ctx`` is the context window, None for the model's own, at most 8192.
    ``prompt_lookup`` is how many tokens to draft from what followed the same words earlier (0 = none): verified like
    every draft, it changes no token. ``gpu_layers`` is how many layers a GPU takes, where llama.cpp was built for one;
    -1 = all. ``truncate_prompts``: see ``prompts.Chat``. Times count from the call, as everywhere.
    """

    backend: ClassVar[str] = "llamacpp"
    method: ClassVar[str] = "prompt_lookup"
    # Its cache has room for one sequence.
    concurrent: ClassVar[bool] = False
    # Whether the model is there is checked here: a file is one, too.
    local: ClassVar[bool] = False

    def __init__(
        self,
        model: str,
        *,
        threads: int | None = None,
        n_ctx: int | None = None,
        gguf_type: str = "f16",
        gpu_layers: int = 0,
        prompt_lookup: int = 0,
        acceptance: str = "rejection",
        truncate_prompts: bool = False,
    ) -> None:
        for name, value, least in (
            ("n_ctx", n_ctx, 1),
            ("gpu_layers", gpu_layers, -1),
            ("prompt_lookup", prompt_lookup, 0),
        ):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise UserError(f"{name} must be a whole number from {least}, not {value!r}", key=name)
        if gguf_type not in TYPES:
            raise unknown("gguf_type", gguf_type, TYPES, key="gguf_type")
        decoding = {"acceptance": acceptance, "length": f"fixed:{prompt_lookup}"}
        super().__init__(model, threads=threads, truncate_prompts=truncate_prompts, **decoding)
        self.n_ctx, self.gguf_type, self.gpu_layers, self.prompt_lookup = n_ctx, gguf_type, gpu_layers, prompt_lookup
        if self._is_file:
            if not Path(model).is_file():
                raise UserError(f"there is no file {model}", key="model")
        else:
            check_model(model)

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return ("threads", "n_ctx", "gguf_type", "gpu_layers", "prompt_lookup", "acceptance", "truncate_prompts")

    @classmethod
    def check_encode(cls) -> None:
        # Our loop decodes, but llama.cpp does not show its hidden states.
        super(EngineLLM, cls).check_encode()

    @property
    def _is_file(self) -> bool:
        return self.model.endswith(".gguf")

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "model": digests.file(Path(self.model)) if self._is_file else digests.folder(model_folder(self.model)),
            **({} if self._is_file else {"gguf_type": self.gguf_type}),
            "n_ctx": self.n_ctx,
            "gpu_layers": self.gpu_layers,
            "threads": self.threads,
            "prompt_lookup": self.prompt_lookup,
            "acceptance": self.options["acceptance"],
        }

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        """The same model in llama.cpp, autoregressive: another engine's weights and arithmetic are not these."""
        return {**self.identity(digests), "prompt_lookup": 0}

    @packages()
    def _load(self) -> None:
        from ianvs_specdec.backends.llamacpp.model import GgufTokenizer, LlamaCppModel, binding

        binding()
        import torch

        from ianvs_specdec import drafters
        from ianvs_specdec.engine.loop import Engine

        self._default_threads = self._default_threads or torch.get_num_threads()
        path = Path(self.model) if self._is_file else self._exported()
        threads = self.threads or usable_processors()
        model = LlamaCppModel(path, n_ctx=self.n_ctx, threads=threads, gpu_layers=self.gpu_layers)
        if self._is_file:
            tokenizer = GgufTokenizer(model)
            self._chat, self._eos_ids = Chat(tokenizer, model.window), tokenizer.ends
        else:
            # The folder's own, so that prompts are those of every other back end to the last token.
            self._chat, ends = chat_of(model_folder(self.model), self.model, model.window)
            self._eos_ids = frozenset(ends)
        self._model = self._target = model
        self._drafter = drafters.create(self.method, {})
        self._serve(Engine(model, self._length, at_once=1))
        self._warm_up()

    def _exported(self) -> Path:
        """The GGUF file of the model folder, written unless it is there. Its name says what is in it."""
        folder = model_folder(self.model)
        result = os.environ.get("RESULT_SAVED_URL")
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ianvs-specdec"
        place = (Path(result).absolute().parent if result else home) / "gguf"
        try:
            place.mkdir(parents=True, exist_ok=True)
            digest = FileDigests(place / "model_files.json").folder(folder)
            path = place / f"{folder.resolve().name}-{digest[:16]}-{self.gguf_type}-{EXPORT_VERSION}.gguf"
            if not path.is_file():
                export_gguf(folder, path, self.gguf_type)
        except OSError as error:
            raise UserError(f"cannot export the model to {place}: {error.strerror or error}", key="model") from error
        return path

    def memory(self) -> int | None:
        return int(self._model.held_bytes) if self._model is not None else None

    def hardware(self) -> Mapping[str, Any]:
        return {
            **machine(),
            "device": f"llama.cpp, {self.gpu_layers} layers on a GPU" if self.gpu_layers else "llama.cpp, cpu",
            "threads": self.threads or usable_processors(),
            "llama_cpp": version("llama-cpp-python"),
            **({"instructions": self._model.instructions()} if self._model is not None else {}),
        }

    def _release(self) -> None:
        target = self._target
        # First whoever computes with it.
        super()._release()
        if target is not None:
            target.close()
