"""Back end ``SlicedSpecDec``: this process computes the lower layers of a model, and a remote verifier the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ianvs_specdec.backends.prompts import local_folder, model_folder
from ianvs_specdec.backends.specdec import EngineLLM, SharedEngine
from ianvs_specdec.backends.split.backend import SplitSpecDecLLM
from ianvs_specdec.backends.split.options import SlicedOptions, drafting, link_options, named_value
from ianvs_specdec.backends.split.verifier import ENGINE_OPTIONS, Cloud, VerifierModel, check_packages
from ianvs_specdec.common.errors import AnswerError, RequestCancelledError, UserError
from ianvs_specdec.common.sampling import Sampling
from ianvs_specdec.common.settings import Settings
from ianvs_specdec.common.types import SplitTrace
from ianvs_specdec.models.validation import model_sizes, read_config
from ianvs_specdec.records.identity import FileDigests

if TYPE_CHECKING:
    from ianvs_specdec.engine import Decoded, Length, Target
    from ianvs_specdec.engine.costs import CostTable
    from ianvs_specdec.engine.request import Request

NANOS = 1e9
MARGIN = 1.2
"""Factor by which a layer must be faster on the edge for the last cut, against noise of the measurement."""

log = logging.getLogger(__name__)


class SlicedSpecDecLLM(EngineLLM):
    """The edge computes the embedding and the first ``cut`` layers, and a verifier the others (docs/strategies.md).

    Hidden states go up and tokens come down, with a round trip for each token or draft. The baseline is the stream of
    ``SplitSpecDec`` without drafts over the same link.
    """

    backend: ClassVar[str] = "SlicedSpecDec"
    letters: ClassVar[bool] = False
    scores: ClassVar[bool] = False
    method = "autoregressive"
    Options: ClassVar[type[Settings]] = SlicedOptions

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        given = self.options
        if given.emulate is not None or given.engine not in ("auto", "native"):
            key = "emulate" if given.emulate is not None else "engine"
            raise UserError(f"{key}: a sliced model is computed by the native step as it is: leave it out", key=key)
        if given.cut == "auto" and given.states != "float32":
            reason = f"cut: with states {given.states} answers depend on the cut, which auto measures: name a number"
            raise UserError(reason, key="cut")
        self._shared = {name: value for name, value in given.given().items() if name in ENGINE_OPTIONS}
        self._upper = VerifierModel(model, self._shared, {})
        self._link = link_options(given.link)
        self._cloud: Cloud | None = None

    def _drafting(self) -> dict[str, Any]:
        self.method, values = drafting(named_value(self.options.edge, self.options.named, "edge"))
        return values

    def check(self, sampling: Sampling) -> None:
        check_packages()
        for key, given in (
            ("logprobs", sampling.logprobs),
            ("repetition_penalty", sampling.repetition_penalty != 1.0),
            ("min_tokens", sampling.min_tokens),
        ):
            if given:
                raise UserError(f"{key}: not supported for a sliced model; leave it out", key=key)
        if not sampling.greedy and not self.options.acceptance:
            raise UserError("SlicedSpecDec needs acceptance: coupled above temperature 0", key="temperature")

    def check_files(self) -> None:
        super().check_files()
        folder = local_folder(self.model)
        sizes = model_sizes(read_config(folder, key="model")) if folder is not None else None
        if sizes is not None:
            _cut(self.options.cut, sizes.layers, faster=False)

    @classmethod
    def check_encode(cls) -> None:
        super(EngineLLM, cls).check_encode()

    def profile(self, seconds: float) -> CostTable:
        raise UserError("the steps of a sliced model depend on the link and the verifier: profile the whole model")

    def shared(self, length: Length, at_once: int) -> SharedEngine:
        raise UserError("a verifier computes a whole model: leave backend out", key="backend")

    def lossy(self, sampling: Sampling) -> bool:
        return bool(self.options.states != "float32")

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        given = self.options
        own = {"cut": given.cut, "states": given.states, "link": self._link, "acceptance": given.acceptance}
        return {**super().identity(digests), **own, "backend": self.backend, "verifier": given.verifier}

    def baseline_identity(self, digests: FileDigests) -> dict[str, Any] | None:
        same = {name: getattr(self.options, name) for name in ("link", "verifier", "acceptance")}
        return SplitSpecDecLLM(self.model, edge={"mode": "stream"}, **same, **self._shared).identity(digests)

    def _new_target(self) -> Target:
        from ianvs_specdec.backends.split.sliced.target import SlicedTarget
        from ianvs_specdec.net.split.split_pb2 import Cut, States
        from ianvs_specdec.net.split.wire import numerics_mismatch
        from ianvs_specdec.targets.native.target import NativeTarget
        from ianvs_specdec.targets.registry import native_unavailable_reason

        if (reason := native_unavailable_reason(self._model)) is not None:
            raise UserError(f"a sliced model is computed by the native step, which cannot: {reason}", key="backend")
        whole, given = super()._new_target(), self.options
        assert isinstance(whole, NativeTarget)
        folder, timed = model_folder(self.model), given.cut == "auto"
        self._cloud = cloud = Cloud(given, self._upper.command(None), self._link, folder, timed=timed)
        if cloud.model.numerics != whole.numerics:
            raise UserError(numerics_mismatch(whole.numerics, cloud.model.numerics), key="verifier")
        faster = timed and MARGIN * whole.layer_seconds() < cloud.model.layer / NANOS
        layer = _cut(given.cut, whole.layers, faster)
        log.info("the edge computes %d of %d layers", layer, whole.layers)
        cut = Cut(
            fingerprint=cloud.model.fingerprint,
            layer=layer,
            states=States.Value(given.states.upper()),
            numerics=whole.numerics,
        )
        return SlicedTarget(whole, cut, cloud.connection, given.patience, cloud.model.most_draft)

    def target(self) -> str:
        target = self._target
        return f"sliced, {target.cut} of {target.layers} layers on the edge"

    def hardware(self) -> Mapping[str, Any]:
        """Comparable to the baseline's."""
        address = self.options.verifier
        own = {name: value for name, value in super().hardware().items() if name != "device"}
        return {**own, **({"server": address} if address else self._upper.hardware())}

    def _request(self, scored: bool, prompt_ids: list[int], sampling: Sampling, **options: Any) -> Request:
        from ianvs_specdec.backends.split.sliced.target import SlicedRequest

        # ``resume`` does not check.
        self.check(sampling)
        return SlicedRequest(self._target, self._drafter.fork(), prompt_ids, sampling, **options)

    def _run(self, request: Callable[[], Request]) -> Decoded:
        made: Any = request()
        cloud, total = self._cloud, self._target.total
        assert cloud is not None
        before, messages = cloud.bytes(), (total.up, total.down)
        try:
            decoded = super()._run(lambda: made)
        except AnswerError as error:
            if not isinstance(error, RequestCancelledError):
                cloud.check()
            raise
        counts, trace = made.sequence.counts, decoded.trace
        # Bytes at the link, shared among concurrent answers in proportion to their messages.
        up, down = (now - then for now, then in zip(cloud.bytes(), before, strict=True))
        trace.bytes_up = round(up * counts.up / (total.up - messages[0]))
        trace.bytes_down = round(down * counts.down / (total.down - messages[1]))
        rounds, drafted = len(trace.steps), trace.drafting or 0.0
        none = dict.fromkeys(("hidden", "ahead", "hits", "streamed", "alone"), 0)
        trace.split = SplitTrace(
            rounds=rounds,
            in_flight=1,
            waits=rounds,
            drafting=drafted + counts.edge,
            breaks=counts.breaks,
            lost=counts.lost,
            prefill=counts.prefill,
            work=counts.work,
            **none,
        )
        return decoded

    @property
    def processes(self) -> tuple[int, ...]:
        """See ``Cloud.processes``."""
        return self._cloud.processes if self._cloud is not None else ()

    def _release(self) -> None:
        if (target := self._target) is not None:
            target.stop()
        super()._release()
        if target is not None:
            target.close()
        if (cloud := self._cloud) is not None:
            self._cloud = None
            cloud.close()


def _cut(cut: int | str, layers: int, faster: bool) -> int:
    """The number of layers on the edge. Raises UserError for too many.

    Only ``cut * (edge - cloud)`` of a token's time depends on the cut, with the seconds of a layer on each side. So
    ``auto`` is as many as possible if the edge is ``faster``, else 1.
    """
    if layers < 2:
        raise UserError("cut: a model of 1 layer cannot be sliced", key="cut")
    if cut == "auto":
        return layers - 1 if faster else 1
    if int(cut) >= layers:
        raise UserError(f"cut: a model of {layers} layers is cut at 1 to {layers - 1}, not {cut}", key="cut")
    return int(cut)
