"""Settings of an edge, and the edge itself, with which gRPC is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from ianvs_specdec import drafters
from ianvs_specdec.backends.base import Threads
from ianvs_specdec.backends.split.edge.controller import Mode
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.settings import Settings, Text
from ianvs_specdec.net.split import MAX_IN_FLIGHT
from ianvs_specdec.records.identity import FileDigests

if TYPE_CHECKING:
    from ianvs_specdec.backends.split.edge.connection import Connection
    from ianvs_specdec.backends.split.edge.decode import Edge, Finish
    from ianvs_specdec.backends.split.edge.drafts import RemoteTarget
    from ianvs_specdec.common.types import Sampling
    from ianvs_specdec.engine import Decoded, Drafter
    from ianvs_specdec.net.split.split_pb2 import Model

Policy = Literal["wait", "fail", "edge"]
MODES, POLICIES = get_args(Mode), get_args(Policy)
IN_FLIGHT, PATIENCE = 4, 10.0
"""Defaults."""


class EdgeSettings(Settings):
    """What an edge does. Without ``method`` it does not draft, and ``mode`` must be ``stream``.

    ``outage``: the policy for a verifier that is unreachable for ``patience`` seconds.
    """

    method: Text | None = None
    options: dict[str, Any] = Field(default={}, description="the method's options, the length among them")
    mode: Mode = "auto"
    in_flight: Annotated[int, Field(ge=1, le=MAX_IN_FLIGHT)] = IN_FLIGHT
    outage: Policy = "wait"
    patience: Annotated[float, Field(gt=0)] = PATIENCE
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    threads: Threads | None = None

    @model_validator(mode="after")
    def _check(self) -> EdgeSettings:
        try:
            self._check_method()
            self._length()
        except UserError as error:
            raise ValueError(error) from error
        if self.outage == "edge" and self.method != "draft_model":
            reason = "outage edge: only a draft model can finish an answer by itself"
            raise ValueError(UserError(f"{reason}; use method draft_model", key="outage"))
        return self

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        """What answers and times depend on, as JSON."""
        if self.method is None:
            return {"mode": self.mode}
        options = drafters.replace_files(self.method, self.options, digests.path)
        drafting = {"method": self.method, "options": options, "mode": self.mode, "in_flight": self.in_flight}
        # The other policies change no answer.
        outage = {"outage": self.outage} if self.outage == "edge" else {}
        return {**drafting, **outage, "dtype": self.dtype, "threads": self.threads}

    def _check_method(self) -> None:
        if self.method is None:
            if self.mode != "stream" or self.options:
                raise UserError(
                    "method is missing: without one the edge does not draft, and mode must be stream", key="method"
                )
            return
        check_remote_drafting(self.method, self._drafting)

    @property
    def _drafting(self) -> dict[str, Any]:
        """Options of the drafter: the length is not the engine's here."""
        return {name: value for name, value in self.options.items() if name != "length"}

    def _length(self) -> int | None:
        """The fixed length of drafts, None for ``auto``."""
        text = str(self.options.get("length", "auto"))
        kind, _, number = text.rpartition(":")
        if text != "auto" and (kind not in ("", "fixed") or not number.isdigit()):
            rule = "for a remote verifier it is auto or fixed:N; other lengths are the verifier's"
            raise UserError(f"length {text!r}: {rule}", key="length")
        return None if text == "auto" else int(number)

    def edge(self, connection: Connection, model: Model, target: RemoteTarget) -> Edge:
        """Load the drafter. ``model``: the verifier's."""
        from ianvs_specdec.backends.split.edge.controller import Controller
        from ianvs_specdec.backends.split.edge.decode import Edge
        from ianvs_specdec.backends.split.edge.session import Outage
        from ianvs_specdec.drafters.autoregressive import Autoregressive

        drafter = Autoregressive() if self.method is None else drafters.create(self.method, self._drafting)
        drafter.prepare(target)  # type: ignore[arg-type]
        ahead = self.in_flight if drafter.supports_continuations else 0
        controller = Controller(self._length(), mode=self.mode, in_flight=ahead)
        outage = Outage(self.outage, self.patience)
        finish = _finish(drafter, model) if self.outage == "edge" else None
        return Edge(connection, model, drafter, target, controller, outage, self.in_flight, finish)


def check_remote_drafting(method: str, options: Mapping[str, Any]) -> None:
    """Raise UserError unless ``method`` needs nothing of the target but its tokens."""
    remote = [name for name, known in drafters.METHODS.items() if known.tokens_only]
    if method not in remote or options.get("head"):
        reason = f"method {method} needs what the target computes, which the edge does not have"
        raise UserError(f"{reason}; use one of {', '.join(remote)}", key="method")
    drafters.check(method, options)
    if options.get("acceptance", "coupled") != "coupled":
        raise UserError("acceptance: probabilities are not sent, so it must be coupled", key="acceptance")


def remote_target(model: Model, folder: Path | None, dtype: str) -> RemoteTarget:
    """The verifier's target for drafters. Raises UserError if ``folder`` has another tokenizer."""
    import torch

    from ianvs_specdec.backends.split.edge.drafts import RemoteTarget
    from ianvs_specdec.drafters.datastore import fingerprint

    own = fingerprint(folder) if folder is not None else ""
    if own and model.tokenizer and own != model.tokenizer:
        reason = f"{folder} has another tokenizer than {model.name}, which the verifier serves"
        raise UserError(f"{reason}: the same ids would be other tokens. Name a folder with its tokenizer as model")
    return RemoteTarget(model.vocabulary, model.window or None, getattr(torch, dtype), folder)


def read_token(file: Path | None) -> str:
    """The access token of this edge, the first word of a file. Raises UserError for a file without one."""
    if file is None:
        return ""
    try:
        return file.read_text(encoding="utf-8-sig").split()[0]
    except (OSError, UnicodeDecodeError, IndexError) as error:
        raise UserError(f"token file {file}: no token can be read from it", key="token_file") from error


def _finish(drafter: Drafter, model: Model) -> Finish:
    from ianvs_specdec.drafters.autoregressive import Autoregressive
    from ianvs_specdec.drafters.draft_model.drafter import DraftModel
    from ianvs_specdec.engine import decode
    from ianvs_specdec.lengths.fixed import Fixed

    assert isinstance(drafter, DraftModel)
    if drafter.translation is not None:
        reason = "outage edge: the draft model has another tokenizer than the target"
        raise UserError(f"{reason} and cannot finish its answers; choose wait or fail", key="outage")

    def finish(tokens: Sequence[int], sampling: Sampling) -> Decoded:
        return decode(drafter.batch_key, Autoregressive(), Fixed(0), tokens, sampling, eos_ids=model.ends)

    return finish
