"""What every back end offers: ask, load lazily, say what its answers depend on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Settings, build
from ianvs_specdec.common.types import Completion, Encoding, Hints, Message, Occupancy, Sampling
from ianvs_specdec.records.identity import FileDigests, machine

MAX_THREADS = 1024
"""Of one operation. Libraries start all they are asked for, and end the process where the system gives no more."""
Threads = Annotated[int, Field(ge=1, le=MAX_THREADS, description="CPU threads of one operation")]
DType = Literal["auto", "float32", "bfloat16", "float16"]
Truncate = Annotated[bool, Field(description="truncate a prompt that exceeds the model's window")]

RawPrompt = str | tuple[int, ...]
"""A text, or token ids, that is continued as it is, without a chat template."""
PromptInput = list[Message] | RawPrompt

OnChunk = Callable[[str, int], None]
"""Called with each piece of text as it becomes final and the number of tokens in it (0 where not known before the end).
"""


NO_HINTS = Hints()


def check_threads(value: Any, option: str = "threads") -> None:
    """Raise UserError unless the value of an option is a possible number of threads, or None."""
    if value is not None and (type(value) is not int or not 1 <= value <= MAX_THREADS):
        raise UserError(f"{option} must be a whole number from 1 to {MAX_THREADS}, not {value!r}", key="threads")


class LLM(ABC):
    """A model behind one back end. Constructing it costs nothing; ``load`` or the first ``generate`` loads it."""

    backend: ClassVar[str]
    local: ClassVar[bool]
    """Whether ``model`` is a folder or a name on the Hugging Face hub, rather than a name that a server knows."""

    concurrent: ClassVar[bool] = False
    """Whether ``generate`` may be called while another call of it is under way; from any thread."""

    letters: ClassVar[bool] = False
    """Whether ``Sampling.logprobs`` brings ``Trace.letters``."""

    truncate_prompts: bool | None = None
    """Whether a prompt that does not fit into the model's window is cut, else it is refused; None: others decide."""

    Options: ClassVar[type[Settings]] = Settings
    """What the constructor takes besides ``model``. Declaring it imports nothing heavy."""

    def __init__(self, model: str, **options: Any) -> None:
        """Raises UserError, with the ``key`` at fault, for an option that the back end does not take."""
        self.model = model
        self.options: Any = build(self.Options, options, f"option of {self.backend}")

    def check(self, sampling: Sampling) -> None:  # noqa: B027 - most back ends can do all of it
        """Raise UserError if the back end cannot sample like this. Does not load the model."""

    def check_files(self) -> None:  # noqa: B027 - most back ends read none
        """Raise UserError, with the ``key`` at fault, for what the headers of model files and the machine's devices
        tell: a model, head or draft model that is damaged or another than its place asks for, a device that is not
        there. Loads no model."""

    @abstractmethod
    def load(self) -> None:
        """Load and warm up. Does nothing when loaded. Raises UserError where the user can help."""

    @abstractmethod
    def generate(
        self,
        messages: list[Message],
        sampling: Sampling,
        on_chunk: OnChunk | None = None,
        hints: Hints = NO_HINTS,
    ) -> Completion:
        """Answer a chat. Times in the trace count from this call; loading is not among them. Raises AnswerError where
        this one cannot be answered: ContextWindowError for a prompt that does not fit.
        """

    def encode(self, messages: list[Message], sampling: Sampling, layers: Sequence[int]) -> Encoding:
        """The hidden states of ``layers`` (as in ``engine.contracts.Target.open``) of the prompt that ``generate``
        would answer. Raises UserError where the back end has none, and AnswerError as ``generate`` does."""
        self.check_encode()
        raise NotImplementedError

    @classmethod
    def check_encode(cls) -> None:
        """Raise UserError, with the ``key`` at fault, where the back end has no hidden states."""
        raise cls._unable("return hidden states")

    def begin(self, messages: list[Message], sampling: Sampling, tokens: int, hints: Hints = NO_HINTS) -> Completion:
        """The first ``tokens`` tokens of what ``generate`` answers, or all of it where it is shorter."""
        self.check_resume()
        raise NotImplementedError

    def resume(
        self, messages: list[Message], sampling: Sampling, begun: Sequence[int], hints: Hints = NO_HINTS
    ) -> Completion:
        """What ``generate`` answers, where its first tokens are ``begun``, which ``begin`` gave. ``prompt_tokens`` and
        trace are those of this request, for which ``begun`` belongs to the prompt. Greedy and coupled answers alone
        are the same as from one request."""
        self.check_resume()
        raise NotImplementedError

    @classmethod
    def check_resume(cls) -> None:
        """Raise UserError, with the ``key`` at fault, where the back end does not ``resume`` answers."""
        raise cls._unable("continue an answer after its first tokens")

    @classmethod
    def _unable(cls, what: str) -> UserError:
        instead = "name one of our own engine, autoregressive or a drafting method"
        return UserError(f"the back end {cls.backend} does not {what}: {instead}", key="backend")

    @abstractmethod
    def identity(self, digests: FileDigests) -> dict[str, Any]:
        """What determines answers besides sampling and messages, as JSON. Does not load the model."""

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        """``identity`` of the same model decoded autoregressively by our engine; None where that cannot be run."""
        return None

    def lossy(self, sampling: Sampling) -> bool:
        """Whether the back end is set to trade the model's own output for speed. Does not load the model."""
        return False

    def memory(self) -> int | None:
        """Bytes that the weights hold, and the cache where it is reserved as a whole; None where that is not known.
        Called when the model is loaded.
        """
        return None

    def target(self) -> str | None:
        """What computes: a target of our engine by its ``kind``, or another engine by its name; None where that is not
        known. Called when the model is loaded.
        """
        return None

    def occupancy(self) -> Occupancy | None:
        """What the engine has to do at this moment; None where that is not known. From any thread."""
        return None

    def on_compute_start(self, call: Callable[[], None]) -> bool:
        """Have ``call`` called whenever the chunks that were put out had better be sent on: as the model begins to
        compute the next ones, and when it has nothing to do. On the thread that decodes; for one at a time. False where
        the back end does not report it. Called when the model is loaded."""
        return False

    def emulation(self) -> Mapping[str, Any] | None:
        """Which machine's speed is emulated, ``machine``, ``model``, ``method`` and ``scale``, and how many ``steps``
        there were, of which ``overruns`` took longer than there; None: none. From any thread."""
        return None

    def hardware(self) -> Mapping[str, Any]:
        """What the timings depend on. Called when the model is loaded."""
        return machine()

    def close(self) -> None:  # noqa: B027 - most back ends hold something, none has to
        """Release memory and connections. The object can be loaded again."""

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
