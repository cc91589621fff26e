"""Back ends of our engine, one class per drafting method in ``drafters.METHODS``, such as ``EagleSpecDecLLM``."""

from __future__ import annotations

import functools
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from ianvs_specdec import drafters, lengths
from ianvs_specdec.backends.base import NO_HINTS
from ianvs_specdec.backends.local import LocalLLM, LocalOptions
from ianvs_specdec.backends.prompts import TextOutput, local_folder
from ianvs_specdec.backends.quantization import built_in
from ianvs_specdec.common.errors import ContextWindowError
from ianvs_specdec.common.settings import Settings, Text
from ianvs_specdec.common.types import Completion, Encoding, EngineName, Hints, Message, Occupancy, Sampling, Trace
from ianvs_specdec.models.validation import model_sizes, read_config
from ianvs_specdec.records.identity import FileDigests

if TYPE_CHECKING:
    from ianvs_specdec.backends.batcher import Batcher
    from ianvs_specdec.backends.emulation import Emulation, EmulationSettings
    from ianvs_specdec.engine import Decoded, Drafter, Length, Target
    from ianvs_specdec.engine.costs import CostTable
    from ianvs_specdec.engine.loop import Engine
    from ianvs_specdec.engine.request import Request


MAX_SCALE = 1e6


@dataclass(frozen=True)
class SharedEngine:
    """A loaded model for a caller that creates requests itself (see ``EngineLLM.shared``)."""

    target: Target
    drafter: Drafter
    batcher: Batcher
    eos_ids: frozenset[int]
    text: Callable[[list[int]], str]
    """Decodes token ids."""


class EngineOptions(LocalOptions):
    """Options of all back ends of our engine."""

    engine: EngineName = Field("auto", description="what computes the model")
    emulate: Text | None = Field(None, description="a cost table of the machine to emulate")
    emulate_scale: Literal["auto"] | Annotated[float, Field(gt=0, le=MAX_SCALE)] = Field(
        "auto", description="slowdown relative to the table; auto = the smallest that this machine permits"
    )


class EngineLLM(LocalLLM):
    """A model decoded by our loop with the drafter of ``method``. Concurrent requests share steps."""

    concurrent: ClassVar[bool] = True
    scores: ClassVar[bool] = True

    Options: ClassVar[type[Settings]] = EngineOptions

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.engine = getattr(self.options, "engine", "auto")
        self.drafting = self._drafting()
        """The method's given options."""
        drafters.check(self.method, self.drafting)
        self._length = lengths.create(self.drafting.get("length", drafters.default_length(self.method)))
        self._emulated = self._emulation_settings()
        self._emulation: Emulation | None = None
        self._target: Any = None
        self._drafter: Any = None
        self._batcher: Any = None
        self._ending: Any = None

    def _emulation_settings(self) -> EmulationSettings | None:
        if getattr(self.options, "emulate", None) is None:
            return None
        from ianvs_specdec.backends.emulation import EmulationSettings

        return EmulationSettings.parse(self.options, drafts=self.method != "autoregressive")

    def _drafting(self) -> dict[str, Any]:
        own = drafters.METHODS[self.method].options.model_fields
        return {name: value for name, value in self.options.explicit().items() if name in own}

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        emulated = {} if self._emulated is None else {"emulate": self._emulated.identity(digests)}
        # Digests of files instead of paths.
        options = drafters.replace_files(self.method, self.drafting, digests.path)
        return {**super().identity(digests), "options": options, **self.computed_by(), **emulated}

    def check_files(self) -> None:
        super().check_files()
        folder = local_folder(self.model)
        target = model_sizes(read_config(folder, key="model")) if folder is not None else None
        drafters.check_files(self.method, self.drafting, target, folder)

    def lossy(self, sampling: Sampling) -> bool:
        return self.options.acceptance == "typical" and not sampling.greedy

    def _prepare(self) -> None:
        from ianvs_specdec.engine.loop import Engine
        from ianvs_specdec.engine.memory import sequence_budget

        self._target = self._new_target()
        trees = getattr(self._target, "takes_trees", True)
        self._drafter = drafters.create(self.method, self.drafting, trees=trees)
        self._drafter.prepare(self._target)
        memory = sequence_budget(self._target.device)
        if self._emulated is not None:
            self._emulation = self._emulated.start(self._target, self._drafter, memory)
        self._serve(Engine(self._target, self._length, memory, timer=self._emulation))

    def _new_target(self) -> Target:
        from ianvs_specdec.targets.registry import create_target

        return create_target(
            self._model,
            consume=True,
            quantization=built_in(self.quantization),
            engine=self.engine,
        )

    def _request(self, scored: bool, prompt_ids: list[int], sampling: Sampling, **options: Any) -> Request:
        """``scored``: with log-probabilities of the prompt."""
        from ianvs_specdec.engine.prompts import ScoredPrompt
        from ianvs_specdec.engine.request import Request

        kind = ScoredPrompt if scored else Request
        return kind(self._target, self._drafter.fork(), prompt_ids, sampling, **options)

    def profile(self, seconds: float) -> CostTable:
        """Measure the costs of steps and drafts on this machine, in about ``seconds`` at most."""
        from ianvs_specdec.engine.memory import sequence_budget
        from ianvs_specdec.targets.profiling import profile

        self.load()
        self._set_threads()
        return profile(self._target, self._drafter, seconds, memory=sequence_budget(self._target.device))

    def _serve(self, engine: Engine) -> None:
        """Start to serve requests with ``engine``."""
        from ianvs_specdec.backends.batcher import Batcher

        self._batcher = Batcher(engine, self.options.threads or self._default_threads)
        # The thread would keep the weights of a model that is never closed.
        self._ending = weakref.finalize(self, self._batcher.close)

    def shared(self, length: Length, at_once: int) -> SharedEngine:
        """The loaded model for the caller's own requests, on a new engine that replaces the current one.

        ``length``: its speculation length; ``at_once``: requests that share a step.
        """
        from ianvs_specdec.engine.loop import Engine
        from ianvs_specdec.engine.memory import sequence_budget

        self.load()
        assert self._chat is not None
        self._ending()
        memory = sequence_budget(self._target.device)
        self._serve(Engine(self._target, length, memory, at_once, self._emulation))
        return SharedEngine(self._target, self._drafter, self._batcher, self._eos_ids, self._chat.text)

    def encode(self, messages: list[Message], sampling: Sampling, layers: Sequence[int]) -> Encoding:
        import numpy as np

        from ianvs_specdec.engine.prompts import PromptEncoder
        from ianvs_specdec.engine.request import Request

        self.check_encode()
        self.load()
        started = time.perf_counter()
        prompt_ids, _ = self._prompt(messages, sampling, truncate=self.truncate_prompts)
        encoder = PromptEncoder(layers)
        self._run(lambda: Request(self._target, encoder, prompt_ids, Sampling(max_tokens=1), eos_ids=()))
        most = float(np.finfo(np.float16).max)
        states = encoder.states.clamp(-most, most).numpy().astype(np.float16)
        return Encoding(states, len(prompt_ids), time.perf_counter() - started)

    @classmethod
    def check_encode(cls) -> None:
        """All targets of our engine return hidden states."""

    def begin(self, messages: list[Message], sampling: Sampling, tokens: int, hints: Hints = NO_HINTS) -> Completion:
        self.load()
        return self._answer(messages, sampling, None, hints, truncate=self.truncate_prompts, most=tokens)

    def resume(
        self, messages: list[Message], sampling: Sampling, begun: Sequence[int], hints: Hints = NO_HINTS
    ) -> Completion:
        self.load()
        return self._answer(messages, sampling, None, hints, truncate=self.truncate_prompts, begun=begun)

    @classmethod
    def check_resume(cls) -> None:
        """Our engine can continue any output."""

    def _decode(
        self, prompt_ids: list[int], sampling: Sampling, output: TextOutput, prediction: list[int], hints: Hints
    ) -> tuple[list[int], str, Trace]:
        decoded = self._run(
            lambda: self._request(
                hints.scored,
                prompt_ids,
                sampling,
                eos_ids=self._eos_ids,
                stop=output.ends,
                on_tokens=output.emit,
                rule=self.options.acceptance,
                prediction=prediction,
                task=hints.task,
                cancelled=hints.cancelled,
                top=hints.top,
            )
        )
        return decoded.token_ids, decoded.finish_reason, decoded.trace

    def _run(self, request: Callable[[], Request]) -> Decoded:
        try:
            return self._batcher.run(request())
        except ContextWindowError as error:
            raise ContextWindowError(f"model {self.model}: {error}") from error

    def target(self) -> str | None:
        return str(self._target.kind) if self._target is not None else None

    def hardware(self) -> Mapping[str, Any]:
        emulated = {} if self._emulation is None else {"emulated": self._emulation.describe()}
        return {**super().hardware(), **emulated}

    def emulation(self) -> Mapping[str, Any] | None:
        return None if self._emulation is None else self._emulation.progress()

    def occupancy(self) -> Occupancy | None:
        batcher = self._batcher
        return batcher.occupancy if batcher is not None else None

    def on_compute_start(self, call: Callable[[], None]) -> bool:
        self._batcher.on_compute_start = call
        return True

    def _weights_memory(self) -> int:
        from ianvs_specdec.engine.memory import tensor_bytes

        return tensor_bytes(*self._target.weights, *self._drafter.weights(), exclude=[self._target])

    def _release(self) -> None:
        if self._ending is not None:
            self._ending()
        if self._emulation is not None:
            self._emulation.log_overruns()
        self._emulation = self._target = self._drafter = self._batcher = self._ending = None


@functools.cache
def engine_backend(method: str) -> type[EngineLLM]:
    """The class of the back end that drafts with ``method``."""
    entry = drafters.METHODS[method]
    own = type(f"{entry.backend}Options", (EngineOptions, entry.options), {"__module__": __name__})
    about = f"{entry.about[0].upper()}{entry.about[1:]}." if entry.about else f"Drafts of the method {method}."
    body = {"backend": entry.backend, "method": method, "Options": own}
    return type(entry.class_name, (EngineLLM,), {"__doc__": about, "__module__": __name__, **body})


def __getattr__(name: str) -> Any:
    for method, entry in drafters.METHODS.items():
        if entry.class_name == name:
            return engine_backend(method)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
