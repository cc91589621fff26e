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

    def _prepare(self) -> None:
        from ianvs_specdec.decoding import target_of

        self._target = target_of(self._model, consume=True)
        self._drafter = drafters.create(self.method, self.options)

    def _decode(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop: Callable[[list[int]], int | None] | None,
        emit: Emit | None,
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
            )
        except ValueError as error:
            raise UserError(f"model {self.model}: {error}") from error
        return decoded.token_ids, decoded.finish_reason, decoded.trace

    def _release(self) -> None:
        self._target = self._drafter = None


class PromptLookupLLM(SpecDecLLM):
    """Drafts copied from earlier in the context (prompt lookup)."""

    backend: ClassVar[str] = "PromptLookup"
    method: ClassVar[str] = "prompt_lookup"
