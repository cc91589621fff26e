"""Back ends that make prompts here: a chat by the model's template, or what is continued as it is."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

from ianvs_specdec.backends.base import LLM, NO_HINTS, Asked, OnChunk, Plain
from ianvs_specdec.backends.prompts import Chat
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling


class LoadedLLM(LLM):
    """A back end that loads its model when it is first asked. ``truncate_prompts``: see ``prompts.Chat``."""

    truncate_prompts: bool
    _chat: Chat | None = None

    def generate(
        self,
        messages: list[Message],
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
    ) -> Completion:
        self._ready(sampling)
        return self._answer(messages, sampling, on_chunk, hints, truncate=self.truncate_prompts)

    def complete(
        self,
        prompt: Plain,
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
        *,
        echo: bool = False,
    ) -> Completion:
        chat, scored = self._ready(sampling), echo and sampling.logprobs
        if scored and not self.scores:
            raise UserError(f"the back end {self.backend} has no log-probabilities of a prompt", key="backend")
        text, pieces = "", list[str]()
        if echo and (scored or not isinstance(prompt, str)):
            prompt = tuple(chat.encoded(prompt, sampling))
            pieces = chat.pieces(list(prompt))
        if echo:
            text = prompt if isinstance(prompt, str) else "".join(pieces)
            if on_chunk is not None:
                on_chunk(text, 0)
        # What is cut off would have no scores.
        truncate = self.truncate_prompts and not scored
        completion = self._answer(prompt, sampling, on_chunk, replace(hints, scored=scored), truncate=truncate)
        completion.text, completion.echoed = text + completion.text, len(text)
        if scored:
            trace = completion.trace
            trace.letters, trace.characters = [], [*map(len, pieces), *(trace.characters or ())]
        return completion

    def tokenize(self, prompt: Asked, sampling: Sampling, *, special: bool = True) -> list[int]:
        return self._ready(sampling).encoded(prompt, sampling, special=special)

    def detokenize(self, ids: tuple[int, ...]) -> str:
        return self._ready(Sampling()).whole_text(ids)

    @property
    def window(self) -> int | None:
        return self._chat.window if self._chat is not None else None

    def _ready(self, sampling: Sampling) -> Chat:
        self.check(sampling)
        self.load()
        # By now it may know more of what it runs on.
        self.check(sampling)
        assert self._chat is not None
        return self._chat

    @abstractmethod
    def _answer(
        self, prompt: Asked, sampling: Sampling, on_chunk: OnChunk | None, hints: Hints, *, truncate: bool
    ) -> Completion:
        """As ``generate`` or ``complete``, of a model that is loaded; ``truncate`` permits to cut the prompt."""
