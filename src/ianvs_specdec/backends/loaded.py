"""Back ends that make prompts here: of a chat by the model's template, or of what is continued as it is."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ianvs_specdec.backends.base import LLM, NO_HINTS, Asked, OnChunk
from ianvs_specdec.backends.prompts import Chat
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Hints, Sampling


class LoadedLLM(LLM):
    """A back end that loads its model when it is first asked. ``truncate_prompts``: see ``prompts.Chat``."""

    scores: ClassVar[bool] = False
    """Whether ``Hints.top`` and ``Hints.scored`` add to ``Trace.confidence``."""

    truncate_prompts: bool
    _chat: Chat | None = None

    def generate(
        self, messages: Asked, sampling: Sampling, on_chunk: OnChunk | None = None, hints: Hints = NO_HINTS
    ) -> Completion:
        self.check(sampling)
        self.load()
        # By now it may know more of what it runs on.
        self.check(sampling)
        # What is cut off would have no scores.
        truncate = self.truncate_prompts and not hints.scored
        return self._answer(messages, sampling, on_chunk, hints, truncate=truncate)

    @property
    def chat(self) -> Chat:
        """Of a model that is loaded."""
        assert self._chat is not None
        return self._chat

    @abstractmethod
    def _answer(
        self, asked: Asked, sampling: Sampling, on_chunk: OnChunk | None, hints: Hints, *, truncate: bool
    ) -> Completion:
        """As ``generate``, of a model that is loaded; ``truncate`` permits to cut the prompt."""


def loaded(llm: LLM) -> LoadedLLM:
    """Raises UserError where the back end makes no prompts here."""
    if not isinstance(llm, LoadedLLM):
        raise UserError(f"the back end {llm.backend} takes chats only: ask /v1/chat/completions", key="backend")
    return llm
