"""Back ends ``eagle-llm`` and ``lade``: the published packages, each in its own process and environment."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ianvs_specdec.backends.base import DType, Threads, Truncate
from ianvs_specdec.backends.local import instructions
from ianvs_specdec.backends.official.layout import check_head, check_model, convert_head, convert_model
from ianvs_specdec.backends.process import WorkerProcess, environment
from ianvs_specdec.backends.prompts import model_digest, model_folder
from ianvs_specdec.backends.specdec import engine_backend
from ianvs_specdec.backends.untrusted import MAX_DRAFT_TOKENS, MAX_TOKENS, bounded_int, bounded_list
from ianvs_specdec.backends.worker_model import WorkerLLM
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Count, Settings, Text
from ianvs_specdec.common.types import Sampling, Step
from ianvs_specdec.records.identity import FileDigests

WORKER = Path(__file__).with_name("worker.py")
PYTHON = "the Python that has the package: a path, a program, or an environment variable that holds one"
CHAIN = 5
"""Default drafts of a chain: the longest path of the package's tree."""
TREE_NODES = 25
"""Drafts of the package's tree."""
EAGLE_MAX_TOKENS, EAGLE_WINDOW = 1024, 1960
"""Limits of ``ea_generate`` of eagle-llm 1.2.1: new tokens, and with the prompt."""
LLAMA_WINDOW = 2048
"""Default of Llama configurations."""


class PublishedOptions(Settings):
    """Options of both back ends."""

    dtype: DType = Field("auto", description="the type of the weights; auto = as stored")
    device: Literal["auto", "cpu"] = Field("auto", description="the packages run on a CPU here")
    threads: Threads | None = None
    truncate_prompts: Truncate = False


class EagleLlmOptions(PublishedOptions):
    eagle_python: Text | None = Field(None, description=PYTHON)
    head: Annotated[Text, Field(description="the folder of an EAGLE-1 or EAGLE-2 head")]
    tree: Literal["static", "chain"] = Field("static", description="the package's own tree of 25 drafts, or one branch")
    depth: Count | None = Field(None, description="the drafts of a chain", json_schema_extra={"unset": str(CHAIN)})


class LadeOptions(PublishedOptions):
    lade_python: Text | None = Field(None, description=PYTHON)
    # lade 0.0.2 fails with an n-gram of fewer tokens.
    level: Annotated[int, Field(ge=3)] = Field(5, description="the length of n-grams, in tokens")
    window: Count = Field(7, description="the width of the lookahead branch")
    guess: Count = Field(7, description="the n-grams verified in one step")


def steps_of(received: Sequence[int], kept: Sequence[int], drafts: Any) -> list[Step]:
    """See ``WorkerLLM.steps``; ``drafts`` as in ``worker``.

    A step yields its accepted drafts and one token more. Tokens from passes over the prompt are not of a step, and
    steps that yield nothing of the output are omitted.
    """
    steps, left = [], sum(kept) - bounded_int(drafts["prefills"], "prefills", sum(received))
    for counts in bounded_list(drafts["steps"], "steps", MAX_TOKENS):
        drafted, accepted, verified = (bounded_int(count, "a step's count", MAX_DRAFT_TOKENS) for count in counts)
        emitted = min(accepted + 1, left)
        if emitted > 0:
            steps.append(Step(drafted, accepted, emitted, verified))
            left -= emitted
    return steps


class PublishedLLM(WorkerLLM):
    """A Llama model decoded by a published package: greedy, on a CPU, one request at a time.

    The baseline is autoregressive decoding by our engine.
    """

    local: ClassVar[bool] = True
    steps = staticmethod(steps_of)
    method: ClassVar[str]
    """The decoding method, as recorded with each answer."""

    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The ``settings`` of a request, see ``worker``."""

    def _script(self) -> list[str]:
        return [str(WORKER), self.backend]

    def check(self, sampling: Sampling) -> None:
        for key, wrong, what in (
            ("temperature", not sampling.greedy, "is run greedy: use temperature 0"),
            ("repetition_penalty", sampling.repetition_penalty != 1, "has no repetition penalty: use 1"),
            ("min_tokens", sampling.min_tokens or sampling.ignore_eos, "does not support min_tokens and ignore_eos"),
            ("logprobs", sampling.logprobs, "returns no log-probabilities: leave logprobs out"),
        ):
            if wrong:
                raise UserError(f"the back end {self.backend} {what}", key=key)
        if self._worker is None:
            self._check_files()
            self.versions()

    def _check_files(self) -> None:
        """Raise UserError for a model that the package does not support."""
        check_model(model_folder(self.model))

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {
            "backend": self.backend,
            "method": self.method,
            "versions": self.versions(),
            "options": self._settings(),
            "model": model_digest(self.model, digests),
            "dtype": self.options.dtype,
            "threads": self.options.threads,
        }

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        options: dict[str, Any] = {name: getattr(self.options, name) for name in ("dtype", "device", "threads")}
        return engine_backend("autoregressive")(self.model, **options).identity(digests)

    def _start(self, folder: Path) -> WorkerProcess:
        self.versions()
        # The package has read the folders once it is ready.
        with tempfile.TemporaryDirectory(prefix=f"specdec-{self.backend}-") as made:
            arguments = {
                "model": str(convert_model(folder, Path(made) / "model", self._eos_ids)),
                "dtype": self.options.dtype,
                "threads": self.options.threads,
                **self._parts(Path(made)),
            }
            return WorkerProcess(self.backend, self.command(), arguments, environment(self.options.threads))

    def _parts(self, folder: Path) -> dict[str, str]:
        """Other folders for the package, created in ``folder``."""
        return {}

    def _window(self, worker: WorkerProcess) -> int:
        return int(check_model(model_folder(self.model)).get("max_position_embeddings", LLAMA_WINDOW))

    def _request(self, sampling: Sampling, room: int) -> dict[str, Any]:
        most = min(sampling.max_tokens, room)
        return {"max_tokens": most, "stop_token_ids": self._eos_ids, "settings": self._settings()}

    def hardware(self) -> Mapping[str, Any]:
        # With the keys of our engine: only times on the same hardware are compared.
        threads = {} if self._worker is not None else {"threads": self.options.threads}
        reported = self._reported("threads", "instructions")
        return {**super().hardware(), "device": "cpu", **instructions(), **threads, **reported}


class EagleLlmLLM(PublishedLLM):
    """eagle-llm, the package of EAGLE's authors."""

    backend: ClassVar[str] = "eagle-llm"
    method: ClassVar[str] = "eagle"
    package: ClassVar[str] = "eagle-llm"
    python_option: ClassVar[str] = "eagle_python"
    required: ClassVar[tuple[str, ...]] = ("eagle-llm", "transformers", "torch")

    Options: ClassVar[type[Settings]] = EagleLlmOptions

    def _settings(self) -> dict[str, Any]:
        chain = {"depth": self.options.depth or CHAIN} if self.options.tree == "chain" else {}
        return {"tree": self.options.tree, **chain}

    def check(self, sampling: Sampling) -> None:
        if sampling.max_tokens > EAGLE_MAX_TOKENS:
            reason = f"eagle-llm ends an answer after {EAGLE_MAX_TOKENS} tokens: set max_tokens to at most that"
            raise UserError(reason, key="max_tokens")
        super().check(sampling)

    def _check_files(self) -> None:
        super()._check_files()
        check_head(model_folder(self.options.head, key="head"))

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {**super().identity(digests), "head": digests.folder(model_folder(self.options.head, key="head"))}

    def _parts(self, folder: Path) -> dict[str, str]:
        return {"head": str(convert_head(model_folder(self.options.head, key="head"), folder / "head"))}

    def _window(self, worker: WorkerProcess) -> int:
        # Its cache is as long as the model's window, and must hold a whole tree after the context.
        return min(super()._window(worker) - self._settings().get("depth", TREE_NODES) - 1, EAGLE_WINDOW)


class LadeLLM(PublishedLLM):
    """lade, the package of lookahead decoding's authors."""

    backend: ClassVar[str] = "lade"
    method: ClassVar[str] = "lookahead"
    package: ClassVar[str] = "lade"
    python_option: ClassVar[str] = "lade_python"
    required: ClassVar[tuple[str, ...]] = ("lade", "transformers", "torch")

    Options: ClassVar[type[Settings]] = LadeOptions

    def _settings(self) -> dict[str, Any]:
        return {name: getattr(self.options, name) for name in ("level", "window", "guess")}
