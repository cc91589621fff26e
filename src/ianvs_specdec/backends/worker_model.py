"""Back ends whose model runs in a worker process (see ``process``)."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from ianvs_specdec.backends.base import NO_HINTS, OnChunk, PromptInput
from ianvs_specdec.backends.local import WARM_UP, WARM_UP_CHAT, TokenizingLLM
from ianvs_specdec.backends.process import Message, WorkerProcess, probe, python_of
from ianvs_specdec.backends.prompts import Chat, TextOutput, load_chat, model_folder
from ianvs_specdec.backends.top_logprobs import Triple, triple
from ianvs_specdec.backends.untrusted import (
    MAX_DRAFT_TOKENS,
    MAX_TOKEN_ID,
    ImplausibleNumber,
    bounded_float,
    bounded_int,
    bounded_list,
    logprob,
    top_logprob,
)
from ianvs_specdec.common.errors import AnswerError, UserError, optional_import, visible
from ianvs_specdec.common.sampling import MAX_COUNT
from ianvs_specdec.common.types import Completion, Hints, Sampling, Step, Trace

MAX_REASON = 80
"""Characters of a worker's finish reason that an error shows."""
CLOCK_TOLERANCE = 1.0
"""Seconds that a time may lie in the future."""

ParseSteps = Callable[[Sequence[int], Sequence[int], Any], list[Step]]


class PendingAnswer:
    """The answer to one request, assembled from the lines of a worker.

    A line has ``time`` (of ``time.monotonic``), ``tokens`` (new ids), ``finish``, ``drafts`` (in the last line) and,
    if requested, ``logprobs``. ``parse_steps`` is ``WorkerLLM.steps``; ``speculative``: the last line has drafts.
    """

    def __init__(
        self,
        name: str,
        chat: Chat,
        sampling: Sampling,
        on_chunk: OnChunk | None,
        parse_steps: ParseSteps,
        *,
        speculative: bool,
    ) -> None:
        self._started = time.monotonic()
        self._name, self._max_tokens, self._parse_steps = name, sampling.max_tokens, parse_steps
        self.output = TextOutput(chat, sampling, on_chunk)
        self._ids: list[int] = []
        self._received: list[int] = []
        """Tokens of each line, those after the end of the output included."""
        self._confidence: list[Triple] | None = [] if sampling.logprobs else None
        self._drafts: Any = None if speculative else []
        self._trace = Trace()
        self._finish_reason: str | None = None

    def add(self, line: Mapping[str, Any]) -> bool:
        """Add a line. Returns False once the output is complete. Raises AnswerError for invalid values."""
        with self._validation():
            if line["drafts"] is not None:
                self._drafts = line["drafts"]
            tokens = bounded_list(line["tokens"], "tokens", self._max_tokens + MAX_DRAFT_TOKENS - len(self._ids))
            if self._finish_reason is None and tokens:
                self._add_tokens(tokens, line)
            if line["finish"] is not None and not isinstance(line["finish"], str):
                raise TypeError("the finish reason is not a string")
            self._finish_reason = self._finish_reason or line["finish"]
        return self._finish_reason is None

    def _add_tokens(self, tokens: list[Any], line: Mapping[str, Any]) -> None:
        before = len(self._ids)
        self._ids += [bounded_int(token, "a token id", MAX_TOKEN_ID) for token in tokens]
        self._received.append(len(tokens))
        if self._confidence is not None:
            for own, best in bounded_list(line["logprobs"], "logprobs", len(tokens)):
                self._confidence.append(triple(logprob(own), [top_logprob(value) for value in best]))
        end = self.output.stop(self._ids) if self.output.stop is not None else None
        if end is not None:
            del self._ids[end:]
            self._finish_reason = "stop"
        new = self._ids[before:]
        at = bounded_float(line["time"], "a time", self._started, time.monotonic() + CLOCK_TOLERANCE)
        self._trace.chunks.append((at - self._started, len(new)))
        if self.output.emit is not None:
            self.output.emit(new)

    @contextmanager
    def _validation(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, TypeError, KeyError) as error:
            kind = ImplausibleNumber.KIND if isinstance(error, ImplausibleNumber) else "broken line"
            failure = (time.monotonic() - self._started, kind)
            raise AnswerError(f"{self._name}'s worker returned an invalid value: {error}", [failure]) from error

    def completion(self, prompt_tokens: int, truncated: int) -> Completion:
        ids, trace = self._ids, self._trace
        if self._finish_reason not in ("stop", "length"):
            reason = visible(str(self._finish_reason)[:MAX_REASON])
            failure = (time.monotonic() - self._started, reason)
            raise AnswerError(f"{self._name} ended the request after {len(ids)} tokens: {reason}", [failure])
        if self._drafts is not None:
            with self._validation():
                trace.steps = self._parse_steps(self._received, [n for _, n in trace.chunks], self._drafts)
        if self._confidence is not None:
            trace.confidence = self._confidence[: len(ids)]
        text = self.output.finish(ids, trace, logprobs=self._confidence is not None)
        return Completion(text, ids, prompt_tokens, len(ids), self._finish_reason, trace, truncated)


class WorkerLLM(TokenizingLLM):
    """A model in a worker process, which receives and returns token ids. Times are those of its engine's steps."""

    package: ClassVar[str]
    """The name of what the worker runs, in messages."""
    python_option: ClassVar[str]
    """The option that names the worker's Python."""
    required: ClassVar[tuple[str, ...]]
    """Packages in the worker's environment, ``package`` first."""

    speculates = True
    """Whether the worker reports the drafts of each answer."""

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        self._versions: Message | None = None
        self.truncate_prompts = self.options.truncate_prompts
        self._loading = threading.Lock()
        self._worker: WorkerProcess | None = None
        self._eos_ids: list[int] = []

    @abstractmethod
    def _script(self) -> list[str]:
        """The worker's script and its arguments."""

    def python(self) -> str:
        """The worker's Python. Raises UserError if there is none."""
        return python_of(getattr(self.options, self.python_option), self.python_option, self.package)

    def command(self) -> list[str]:
        return [self.python(), *self._script()]

    def versions(self) -> Message:
        """What the worker reports about installed packages. Raises UserError if one is missing."""
        if self._versions is None:
            found = probe(self.command(), self.python_option, self.package)
            for name in self.required:
                if found.get(name) is None:
                    package = self.package if name == self.required[0] else name
                    raise UserError(
                        f"there is no {package} in the environment of {self.python()}: install {name} there, or name "
                        f"the Python of an environment that has it under {self.python_option}",
                        key=self.python_option,
                    )
            self._versions = found
        return self._versions

    @abstractmethod
    def _start(self, folder: Path) -> WorkerProcess:
        """Start a worker and load the model in ``folder``."""

    @abstractmethod
    def _window(self, worker: WorkerProcess) -> int:
        """Maximum tokens of prompt and answer together."""

    @abstractmethod
    def _request(self, sampling: Sampling, room: int) -> dict[str, Any]:
        """The arguments of a request. ``room``: maximum tokens of the answer."""

    @staticmethod
    @abstractmethod
    def steps(received: Sequence[int], kept: Sequence[int], drafts: Any) -> list[Step]:
        """The verification steps of an answer.

        ``received``: tokens of each line; ``kept``: those of them in the output; ``drafts``: as reported.
        Raises ValueError, TypeError or KeyError for invalid drafts.
        """

    @optional_import()
    def load(self) -> None:
        with self._loading:
            if self._worker is not None:
                return
            folder = model_folder(self.model)
            self._chat, self._eos_ids = load_chat(folder, self.model, MAX_COUNT)
            worker = self._start(folder)
            try:
                self._chat.window = min(self._chat.window or MAX_COUNT, self._window(worker))
                self._worker = worker
                self._answer(WARM_UP_CHAT, WARM_UP, None, NO_HINTS, truncate=True)
            except BaseException:
                self._worker = None
                worker.close()
                raise

    def _answer(
        self, asked: PromptInput, sampling: Sampling, on_chunk: OnChunk | None, hints: Hints, *, truncate: bool
    ) -> Completion:
        worker, chat = self._worker, self.chat
        assert worker is not None
        assert chat.window is not None
        answer = PendingAnswer(worker.name, chat, sampling, on_chunk, self.steps, speculative=self.speculates)
        prompt, truncated = chat.prompt(asked, sampling, hints, truncate=truncate)
        answer.output.begin(asked, prompt)
        worker.ask(prompt, self._request(sampling, chat.window - len(prompt)), answer.add)
        return answer.completion(len(prompt), truncated)

    def memory(self) -> int | None:
        """Bytes of the weights, including a draft model or head, and of preallocated caches."""
        return self._worker.ready["memory"] if self._worker is not None else None

    def _reported(self, *names: str) -> Mapping[str, Any]:
        """Facts about the worker's environment."""
        ready = self._worker.ready if self._worker is not None else {}
        return {name: ready[name] for name in names if ready.get(name) is not None}

    def close(self) -> None:
        with self._loading:
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.close()
