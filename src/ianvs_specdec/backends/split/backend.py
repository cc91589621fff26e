"""Back end ``SplitSpecDec``: this process drafts, and a remote verifier decides."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ianvs_specdec.backends import prompts
from ianvs_specdec.backends.base import NO_HINTS, OnChunk, PromptInput
from ianvs_specdec.backends.local import WARM_UP, WARM_UP_CHAT, TokenizingLLM, instructions
from ianvs_specdec.backends.split.edge.settings import EdgeSettings
from ianvs_specdec.backends.split.options import SplitOptions, edge_settings, link_options, named_value
from ianvs_specdec.backends.split.verifier import ENGINE_OPTIONS, Cloud, VerifierModel, check_packages
from ianvs_specdec.common.errors import AnswerError, RequestCancelledError, UserError, optional_import
from ianvs_specdec.common.sampling import MAX_COUNT, Sampling
from ianvs_specdec.common.settings import Settings
from ianvs_specdec.common.types import Completion, Hints
from ianvs_specdec.records.identity import FileDigests, machine

if TYPE_CHECKING:
    from ianvs_specdec.backends.split.edge.decode import Edge

MAX_TASK = 100
"""Characters of a task's name that a verifier accepts."""


class SplitSpecDecLLM(TokenizingLLM):
    """The edge drafts in this process, and a verifier runs the model (docs/split.md). One request at a time.

    The baseline is the autoregressive stream of the same verifier over the same link.
    """

    backend: ClassVar[str] = "SplitSpecDec"
    local: ClassVar[bool] = True
    Options: ClassVar[type[Settings]] = SplitOptions

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        given = self.options
        self.truncate_prompts = given.truncate_prompts
        self._address, self._length = given.verifier, None if given.length is None else str(given.length)
        target = {name: value for name, value in given.given().items() if name in ENGINE_OPTIONS}
        beside = named_value(given.beside, given.named, "beside") or {}
        if given.verifier is not None and beside:
            raise UserError("beside: a running verifier has its own drafting method; leave it out", key="beside")
        self._target = VerifierModel(model, target, beside)
        self._edge_settings = edge_settings(named_value(given.edge, given.named, "edge"), given.threads)
        self._link_options = link_options(given.link)
        self._loading = threading.Lock()
        self._cloud: Cloud | None = None
        self._edge: Edge | None = None

    def check(self, sampling: Sampling) -> None:
        check_packages()
        if sampling.logprobs:
            raise UserError("logprobs: a verifier sends none; leave it out", key="logprobs")
        if key := "min_tokens" if sampling.min_tokens else "ignore_eos" if sampling.ignore_eos else "":
            raise UserError(f"{key}: not supported by verifiers; leave it out", key=key)
        if not sampling.greedy and not self.options.acceptance:
            raise UserError("SplitSpecDec needs acceptance: coupled above temperature 0", key="temperature")

    def check_files(self) -> None:
        if self._address is None:
            self._target.check_files()

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return self._identity(self._target, self._edge_settings, digests)

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        return self._identity(self._target.plain(), EdgeSettings(mode="stream"), digests)

    def _identity(self, target: VerifierModel, edge: EdgeSettings, digests: FileDigests) -> dict[str, Any]:
        settings = {"acceptance": self.options.acceptance, "verifier": self._address}
        if target.drafts or edge.method is not None:
            settings["length"] = self._length
        given = {name: value for name, value in settings.items() if value}
        sides = {"target": target.identity(digests), "edge": edge.identity(digests), "link": self._link_options}
        return {"backend": self.backend, **given, **sides}

    @optional_import()
    def load(self) -> None:
        with self._loading:
            if self._edge is not None:
                return
            try:
                self._edge = self._opened()
                self._answer(WARM_UP_CHAT, WARM_UP, None, NO_HINTS, truncate=True)
            except BaseException:
                self._end()
                raise

    def _opened(self) -> Edge:
        from ianvs_specdec.backends.split.edge.settings import remote_target

        folder = prompts.model_folder(self.model)
        self._cloud = cloud = Cloud(self.options, self._target.command(self._length), self._link_options, folder)
        self._chat, _ = prompts.load_chat(folder, self.model, cloud.model.window or MAX_COUNT)
        self._set_threads()
        target = remote_target(cloud.model, folder, self._edge_settings.dtype)
        return self._edge_settings.edge(cloud.connection, cloud.model, target)

    def _set_threads(self) -> None:
        # torch has one number per Python thread.
        import torch

        if (threads := self._edge_settings.threads) is not None and torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

    def _answer(
        self, asked: PromptInput, sampling: Sampling, on_chunk: OnChunk | None, hints: Hints, *, truncate: bool
    ) -> Completion:
        chat, edge, cloud = self._chat, self._edge, self._cloud
        assert chat is not None
        assert edge is not None
        assert cloud is not None
        self._set_threads()
        before, started = cloud.bytes(), time.perf_counter()
        prompt, truncated = chat.prompt(asked, sampling, hints, truncate=truncate)
        output = prompts.TextOutput(chat, sampling, on_chunk)
        output.begin(asked, prompt)

        def emit(tokens: list[int]) -> None:
            if hints.cancelled is not None and hints.cancelled():
                raise RequestCancelledError
            if output.emit is not None:
                output.emit(tokens)

        offset, prediction = time.perf_counter() - started, chat.ids(hints.prediction)
        try:
            answer = edge.decode(prompt, sampling, prediction=prediction, task=hints.task[:MAX_TASK], on_tokens=emit)
        except AnswerError as error:
            if not isinstance(error, RequestCancelledError):
                cloud.check()
            raise
        trace = answer.trace
        trace.chunks = [(seconds + offset, tokens) for seconds, tokens in trace.chunks]
        trace.bytes_up, trace.bytes_down = (now - then for now, then in zip(cloud.bytes(), before, strict=True))
        ids = answer.token_ids
        text = output.finish(ids, trace, logprobs=False)
        return Completion(text, ids, len(prompt), len(ids), answer.finish_reason, trace, truncated)

    def target(self) -> str:
        return "verifier"

    @property
    def processes(self) -> tuple[int, ...]:
        """See ``Cloud.processes``."""
        return self._cloud.processes if self._cloud is not None else ()

    def hardware(self) -> Mapping[str, Any]:
        import torch

        place = {"server": self._address} if self._address else self._target.hardware()
        return {**machine(), **place, "threads": torch.get_num_threads(), **instructions()}

    def close(self) -> None:
        with self._loading:
            self._end()

    def _end(self) -> None:
        cloud, self._cloud, self._edge = self._cloud, None, None
        if cloud is not None:
            cloud.close()
