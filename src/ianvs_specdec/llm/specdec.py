"""Our engine: one class per decoding method, told apart only by the drafter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from ianvs_specdec import drafters, lengths
from ianvs_specdec.errors import UserError
from ianvs_specdec.llm.local import Emit, LocalLLM
from ianvs_specdec.types import Sampling, Trace


class SpecDecLLM(LocalLLM):
    """The model decoded token by token: what every speculative method is measured against."""

    backend: ClassVar[str] = "specdec"
    method: ClassVar[str] = "none"

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        drafters.check(self.method, self.options)
        self._length = lengths.create(str(self.options.get("length", drafters.default_length(self.method))))
        self._target: Any = None
        self._drafter: Any = None

    @classmethod
    def option_names(cls) -> tuple[str, ...]:
        return (*super().option_names(), *drafters.options(cls.method))

    def lossy(self, sampling: Sampling) -> bool:
        return self.options.get("acceptance") == "typical" and not sampling.greedy

    def _prepare(self) -> None:
        from ianvs_specdec.decoding import target_of

        self._target = target_of(self._model, consume=True, int8=self.quantization == "int8")
        self._drafter = drafters.create(self.method, self.options)

    def _decode(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop: Callable[[list[int]], int | None] | None,
        emit: Emit | None,
        prediction: list[int],
        task: str,
    ) -> tuple[list[int], str, Trace]:
        from ianvs_specdec.decoding import decode

        try:
            decoded = decode(
                self._target,
                self._drafter,
                self._length,
                prompt_ids,
                sampling,
                eos_ids=self._eos_ids,
                stop=stop,
                on_tokens=emit,
                rule=self.options.get("acceptance", "rejection"),
                prediction=prediction,
                task=task,
            )
        except ValueError as error:
            raise UserError(f"model {self.model}: {error}") from error
        return decoded.token_ids, decoded.finish_reason, decoded.trace

    def _weights_memory(self) -> int:
        return int(self._target.memory)

    def _release(self) -> None:
        self._target = self._drafter = None


class PromptLookupLLM(SpecDecLLM):
    """Drafts copied from earlier in the context (prompt lookup)."""

    backend: ClassVar[str] = "PromptLookup"
    method: ClassVar[str] = "prompt_lookup"


class PredictedOutputLLM(SpecDecLLM):
    """Drafts from a text that the user expects back (predicted output)."""

    backend: ClassVar[str] = "PredictedOutput"
    method: ClassVar[str] = "predicted_output"


class LadeSpecDecLLM(SpecDecLLM):
    """Drafts from n-grams that the target itself generates on the side (lookahead decoding)."""

    backend: ClassVar[str] = "LadeSpecDec"
    method: ClassVar[str] = "lookahead"


class RestSpecDecLLM(SpecDecLLM):
    """Drafts retrieved from a datastore of texts (REST)."""

    backend: ClassVar[str] = "RestSpecDec"
    method: ClassVar[str] = "rest"


class SuffixSpecDecLLM(SpecDecLLM):
    """Drafts from the longest match in context and corpus, or from a draft head where the match is short (SAMD)."""

    backend: ClassVar[str] = "SuffixSpecDec"
    method: ClassVar[str] = "suffix"


class RecyclingSpecDecLLM(SpecDecLLM):
    """Drafts from the successors that the target considered before (token recycling)."""

    backend: ClassVar[str] = "RecyclingSpecDec"
    method: ClassVar[str] = "recycling"


class DraftModelSpecDecLLM(SpecDecLLM):
    """Drafts of a smaller language model."""

    backend: ClassVar[str] = "DraftModelSpecDec"
    method: ClassVar[str] = "draft_model"


class MedusaSpecDecLLM(SpecDecLLM):
    """Drafts of extra output heads, one for each position ahead (Medusa)."""

    backend: ClassVar[str] = "MedusaSpecDec"
    method: ClassVar[str] = "medusa"


class EagleSpecDecLLM(SpecDecLLM):
    """Drafts of a one-layer head on the target's hidden states (EAGLE-1, -2 and -3)."""

    backend: ClassVar[str] = "EagleSpecDec"
    method: ClassVar[str] = "eagle"
