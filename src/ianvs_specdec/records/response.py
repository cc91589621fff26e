"""The response dict of edge and cloud models: one per query, for all its turns.

Keys of the Ianvs contract: ``completion``, ``usage`` (``prompt_tokens``, ``completion_tokens``, ``total_tokens``),
``perf`` (``time_to_first_token``, ``internal_token_latency`` in seconds, ``throughput`` in tokens/s) and
``prediction``. Our keys:

- ``perf.latency``: seconds from the request to the last token, summed over the turns;
- ``turns``: one dict per turn: ``completion``, ``token_ids``, ``finish_reason``, ``usage``, ``trace`` (see
  ``types.Trace``), ``key`` (in the journal), ``replayed``, ``cached``, ``hardware``, ``baseline`` and, unless 0,
  ``truncated``: number of tokens removed from the prompt (None = not reported by the server);
- ``baseline``: the autoregressive answer of the same model, or None if unknown: ``key``, ``latency`` and ``token``,
  seconds per token after the first chunk (None on other hardware), ``issued``, ``busy``, ``completion_tokens``,
  ``identical`` and, at the first difference, ``near_tie``;
- ``replayed``: contains an answer of an earlier run; ``cached``: contains one of another test case of this run;
- ``greedy``: there is one correct output; ``lossy``: the back end may change the model's output for speed;
- ``error``: why the query has no whole answer, and ``failures``, its attempts, as in a trace; ``turns`` has the
  answered ones;
- ``samples``: further answers of the edge model, each with ``completion``, ``prediction``, ``turns`` and, if not whole,
  ``error``; ``usage``, ``perf`` (latency, throughput) and ``cost`` include them;
- ``stopped``: of an edge answer that was rejected early: number of ``tokens``, and how many more the whole answer has
  (``saved``, None if unknown);
- ``prefill``: of a prompt that the edge computed for a router that reads hidden states: ``seconds``, ``issued``,
  ``hardware``, ``replayed``, ``key`` and ``energy``, as in a turn and its trace; ``usage`` and ``cost`` include it.
  There are no ``turns`` if the edge did nothing else;
- ``side``, ``model``, ``backend``, ``routing`` (the router's decision), ``query_id``, ``group``, ``scorer``, ``cost``,
  ``slo``, ``options`` (number of options of a multiple-choice question), ``sandbox`` (isolation of a program), and
  ``round``, if the rows are divided into rounds.

Undefined values are None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required, TypedDict

import msgspec

from ianvs_specdec.common.types import Amount, Count, Energy, Real, Trace, Whole

EDGE_ANSWER = "edge_answer"
"""Key in a row, then in the cloud's response: the edge's answer that a router requested."""


class Response(dict[str, Any]):
    """A dict with a fast deep copy, since Ianvs copies every result. Copies share the tuples of traces, and ``row``.

    ``row``: the row of the dataset processor. ``early``: the ``EarlyExit`` of an answer that stopped early.
    """

    row: Any = None
    early: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Response:
        copy = Response({key: _copy(value) for key, value in self.items()})
        copy.row = self.row
        return copy


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if kind is list else value


def edge_answer_of(result: Mapping[str, Any], edge: Any) -> Any:
    """The edge's answer to a query: ``edge`` of Ianvs, or the one that a router requested."""
    return result.get(EDGE_ANSWER) if edge is None else edge


class _Usage(TypedDict):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count


class _Baseline(TypedDict, total=False):
    key: str | None
    latency: Real | None
    issued: Real | None
    busy: Real | None
    completion_tokens: Count | None
    difference: Count | None
    identical: bool | None
    near_tie: bool | None


class _Turn(TypedDict, total=False):
    trace: Required[Trace]
    completion: Required[str]
    token_ids: list[Whole]
    usage: _Usage | None
    baseline: _Baseline | None
    finish_reason: str | None
    key: str | None
    hardware: str | None
    replayed: bool | None
    cached: bool | None
    truncated: Count | None


class _Routing(TypedDict, total=False):
    router: str | None
    score: Real | None
    seconds: Real | None


class _Slo(TypedDict, total=False):
    ttft: Real | None
    itl: Real | None
    latency: Real | None


class _Prefill(TypedDict, total=False):
    seconds: Required[Amount]
    issued: Real | None
    replayed: bool | None
    hardware: str | None
    key: str | None
    energy: Energy | None


class _Common(TypedDict, total=False):
    turns: list[_Turn]
    usage: _Usage
    completion: str | None
    error: str | None
    side: str | None
    model: str | None
    backend: str | None
    query_id: str | None
    group: str | None
    scorer: str | None
    replayed: bool | None
    cached: bool | None
    greedy: bool | None
    lossy: bool | None
    cost: Real | None
    options: Count
    round: Count | None
    failures: list[tuple[Real, str]]
    sandbox: list[str]


class _Response(_Common, total=False):
    samples: list[_Common]
    routing: _Routing | None
    slo: _Slo | None
    prefill: _Prefill | None


class _SideResponse(_Response, total=False):
    usage: Required[_Usage]  # type: ignore[misc]


def check_response(response: Mapping[str, Any], *, of_side: bool = False) -> None:
    """Raise ValueError that names the first missing or wrong field. ``of_side`` requires ``usage``."""
    try:
        msgspec.convert(response, _SideResponse if of_side else _Response)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(str(error)) from error
