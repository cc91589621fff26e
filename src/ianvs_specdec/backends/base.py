"""The interface of all back ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Settings, validated
from ianvs_specdec.common.types import Completion, Encoding, Hints, Message, Occupancy, Sampling
from ianvs_specdec.records.identity import FileDigests, machine

MAX_THREADS = 1024
"""Libraries start as many as requested, and abort the process if the system refuses."""
Threads = Annotated[int, Field(ge=1, le=MAX_THREADS, description="CPU threads of one operation")]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Truncate = Annotated[bool, Field(description="truncate a prompt that exceeds the model's window")]

RawPrompt = str | tuple[int, ...]
"""A text or token ids, to be continued without a chat template."""
PromptInput = list[Message] | RawPrompt

OnChunk = Callable[[str, int], None]
"""Called with each final piece of text and its number of tokens, 0 if unknown until the end."""

NO_HINTS = Hints()


def check_threads(value: Any, option: str = "threads") -> None:
    """Raise UserError unless the value of an option is None or a valid number of threads."""
    if value is not None and (type(value) is not int or not 1 <= value <= MAX_THREADS):
        raise UserError(f"{option} must be a whole number from 1 to {MAX_THREADS}, not {value!r}", key="threads")


class LLM(ABC):
    """A model and how it is run. ``load``, or the first ``generate``, loads it."""

    backend: ClassVar[str]
    local: ClassVar[bool]
    """Whether ``model`` is a folder or a name on the Hugging Face hub, rather than a server's name for it."""

    concurrent: ClassVar[bool] = False
    """Whether ``generate`` may be called from several threads at once."""

    letters: ClassVar[bool] = False
    """Whether ``Sampling.logprobs`` adds ``Trace.letters``."""

    truncate_prompts: bool | None = None
    """Whether to truncate a prompt that exceeds the model's window, or to refuse it; None: a server decides."""

    Options: ClassVar[type[Settings]] = Settings
    """Arguments of the constructor besides ``model``."""

    def __init__(self, model: str, **options: Any) -> None:
        """Raises UserError, with its ``key``, for an invalid option."""
        self.model = model
        self.options: Any = validated(self.Options, options, f"option of {self.backend}")

    def check(self, sampling: Sampling) -> None:  # noqa: B027 - optional
        """Raise UserError if the back end does not support ``sampling``. Does not load the model."""

    def check_files(self) -> None:  # noqa: B027 - optional
        """Raise UserError, with its ``key``, for damaged or unsuitable model files, as their headers tell, and for
        missing devices. Loads no model."""

    @abstractmethod
    def load(self) -> None:
        """Load the model and warm up, unless it is loaded. Raises UserError."""

    @abstractmethod
    def generate(
        self,
        messages: list[Message],
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
    ) -> Completion:
        """Answer a chat. Times in the trace count from this call, without loading.

        Raises AnswerError if this chat cannot be answered: ContextWindowError for a prompt that does not fit.
        """

    def encode(self, messages: list[Message], sampling: Sampling, layers: Sequence[int]) -> Encoding:
        """Hidden states of ``layers`` (see ``engine.contracts.Target.open``) for the prompt of ``generate``.

        Raises UserError if the back end has none, and AnswerError as ``generate`` does.
        """
        self.check_encode()
        raise NotImplementedError

    @classmethod
    def check_encode(cls) -> None:
        """Raise UserError if the back end does not return hidden states."""
        raise cls._unable("return hidden states")

    def begin(self, messages: list[Message], sampling: Sampling, tokens: int, hints: Hints = NO_HINTS) -> Completion:
        """The first ``tokens`` tokens of the answer of ``generate``, or all of a shorter one."""
        self.check_resume()
        raise NotImplementedError

    def resume(
        self, messages: list[Message], sampling: Sampling, begun: Sequence[int], hints: Hints = NO_HINTS
    ) -> Completion:
        """The answer of ``generate`` whose first tokens are ``begun``, from ``begin``.

        ``prompt_tokens`` (with ``begun``) and trace are those of this request. Only greedy and coupled answers are the
        same as without interruption.
        """
        self.check_resume()
        raise NotImplementedError

    @classmethod
    def check_resume(cls) -> None:
        """Raise UserError if the back end does not ``resume`` answers."""
        raise cls._unable("continue an answer after its first tokens")

    @classmethod
    def _unable(cls, what: str) -> UserError:
        instead = "name one of our own engine, autoregressive or a drafting method"
        return UserError(f"the back end {cls.backend} does not {what}: {instead}", key="backend")

    @abstractmethod
    def identity(self, digests: FileDigests) -> dict[str, Any]:
        """What determines answers besides sampling and messages, as JSON for the journal key. Loads no model."""

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        """``identity`` of the baseline: the same model without drafts; None if there is none."""
        return None

    def lossy(self, sampling: Sampling) -> bool:
        """Whether the options permit drafts to change the output. Loads no model."""
        return False

    def memory(self) -> int | None:
        """Bytes of the weights and of preallocated caches of the loaded model; None if unknown."""
        return None

    def target(self) -> str | None:
        """The engine of the loaded model: the ``kind`` of our target, or another engine's name; None if unknown."""
        return None

    def occupancy(self) -> Occupancy | None:
        """The engine's current load; None if unknown. Thread-safe."""
        return None

    def on_compute_start(self, call: Callable[[], None]) -> bool:
        """Register the callback that flushes emitted chunks as a step begins to compute, and when idle.

        It runs on the decoding thread. Returns False if the back end does not support it. The model must be loaded.
        """
        return False

    def emulation(self) -> Mapping[str, Any] | None:
        """The emulated ``machine``, ``model``, ``method`` and ``scale``, and the numbers of ``steps`` and ``overruns``.

        None without emulation. Thread-safe.
        """
        return None

    def hardware(self) -> Mapping[str, Any]:
        """What timings of the loaded model depend on."""
        return machine()

    def close(self) -> None:  # noqa: B027 - optional
        """Release memory and connections. The model can be loaded again."""

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
