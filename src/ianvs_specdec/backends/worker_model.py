"""What back ends have in common whose model computes in a worker process (see ``process``)."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ianvs_specdec.backends.answering import PendingAnswer, chat_of
from ianvs_specdec.backends.base import NO_HINTS, OnChunk, PromptInput
from ianvs_specdec.backends.local import WARM_UP, TokenizingLLM
from ianvs_specdec.backends.process import WorkerProcess
from ianvs_specdec.backends.prompts import model_folder
from ianvs_specdec.common.errors import packages
from ianvs_specdec.common.sampling import LARGEST_COUNT
from ianvs_specdec.common.types import Completion, Hints, Sampling, Step


class WorkerLLM(TokenizingLLM):
    """The prompt is tokenised here, as for local models, and the worker is sent token ids. Times are those at which its
    engine's steps were done."""

    speculates = True
    """Whether the worker reports the drafts of each answer."""

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self.truncate_prompts = self.options.truncate_prompts
        self._loading = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._eos_ids: list[int] = []

    @abstractmethod
    def _start(self, folder: Path) -> WorkerProcess:
        """A worker that has loaded the model in ``folder``."""

    @abstractmethod
    def _window(self, worker: WorkerProcess) -> int:
        """The tokens that prompt and answer may have together."""

    @abstractmethod
    def _request(self, sampling: Sampling, room: int) -> dict[str, Any]:
        """The arguments of a request with ``room`` tokens for the answer."""

    @staticmethod
    @abstractmethod
    def steps(received: Sequence[int], kept: Sequence[int], drafts: Any) -> list[Step]:
        """Verification steps (see ``PendingAnswer``)."""

    @packages()
    def load(self) -> None:
        with self._loading:
            if self._worker is not None:
                return
            folder = model_folder(self.model)
            self._chat, self._eos_ids = chat_of(folder, self.model, LARGEST_COUNT)
            worker = self._start(folder)
            try:
                self._chat.window = min(self._chat.window or LARGEST_COUNT, self._window(worker))
                self._worker = worker
                self._answer([{"role": "user", "content": "1 2 3 1 2 3"}], WARM_UP, None, NO_HINTS, truncate=True)
            except BaseException:
                self._worker = None
                worker.close()
                raise

    def _answer(
        self, asked: PromptInput, sampling: Sampling, on_chunk: OnChunk | None, hints: Hints, *, truncate: bool
    ) -> Completion:
        worker, chat = self._worker, self._chat
        assert worker is not None
        assert chat is not None
        assert chat.window is not None
        answer = PendingAnswer(worker.name, chat, sampling, on_chunk, self.steps, speculative=self.speculates)
        prompt, truncated = chat.prompt(asked, sampling, hints, truncate=truncate)
        if isinstance(asked, list):
            answer.follow(prompt)
        worker.ask(prompt, self._request(sampling, chat.window - len(prompt)), answer.take)
        return answer.completion(len(prompt), truncated)

    def memory(self) -> int | None:
        """Bytes of the weights, a draft model's or head's included, and of the caches that are reserved at once."""
        return self._worker.ready["memory"] if self._worker is not None else None

    def _told(self, *names: str) -> Mapping[str, Any]:
        """What the worker reported about its environment."""
        ready = self._worker.ready if self._worker is not None else {}
        return {name: ready[name] for name in names if ready.get(name) is not None}

    def close(self) -> None:
        with self._loading:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
