"""The response dict that edge and cloud models hand to Ianvs: one per query, whatever the number of turns.

Keys of the Ianvs contract: ``completion``, ``usage`` (``prompt_tokens``, ``completion_tokens``, ``total_tokens``),
``perf`` (``time_to_first_token``, ``internal_token_latency`` in seconds, ``throughput`` in tokens/s) and
``prediction``. Ours:

- ``perf.latency``: seconds from the request to the last token, summed over the turns;
- ``turns``: one dict per turn: ``completion``, ``token_ids``, ``finish_reason``, ``usage``, ``trace`` (see
  ``types.Trace``), ``key`` (of the answer in the journal), ``replayed``, ``cached``, ``hardware``, ``baseline``
  and ``truncated``: how many tokens of the prompt were left out, where any were, None where a server does not tell;
- ``baseline``: how the same model answered the same messages autoregressively, or None where it is not known:
  ``key``, ``latency`` and ``token``, seconds of a token after its first piece (None when taken on other hardware),
  ``issued``, ``busy``, ``completion_tokens``, ``identical`` and, at the first difference, ``near_tie``;
- ``replayed``: an answer of an earlier run is in it; ``cached``: one that another test case of this run had asked for;
- ``greedy``: there is one right output; ``lossy``: the back end is set to trade the model's own output for speed;
- ``error``: why the query got no answer, or no whole one, and ``failures``, the attempts at it, as in a trace;
  ``turns`` holds those that were answered;
- ``samples``: further answers of the edge model, each with ``completion``, ``prediction``, ``turns`` and, where it is
  not whole, ``error``; their tokens, times and cost are in ``usage``, ``perf`` (latency, throughput) and ``cost``;
- ``stopped``: where the edge's answer ended early, since it would not do: after how many ``tokens``, and how many more
  the whole answer has (``saved``), None where that is not known;
- ``prefill``: where the edge read the prompt beforehand, for a router that looks at its hidden states: ``seconds``,
  ``issued``, ``hardware``, ``replayed``, ``key`` and ``energy``, as a turn and its trace have them; its tokens and cost
  are in ``usage`` and ``cost``. There are no ``turns`` where the edge did nothing else;
- ``side``, ``model``, ``backend``, ``routing`` (the router's decision), ``query_id``, ``group``, ``scorer``, ``cost``,
  ``slo``, ``options`` (how many a multiple-choice question has), ``sandbox`` (how a program was confined), and
  ``round``, where the rows are divided into rounds.

What is undefined is None, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Required, TypedDict

import msgspec

from ianvs_specdec.common.types import Amount, Count, Energy, Real, Trace, Whole

EDGE_ANSWER = "edge_answer"
"""In a row, then in the cloud's response: the edge's answer, which a router has asked for."""


class Response(dict[str, Any]):
    """A dict that copies quickly. Ianvs deep-copies every row's result; traces are tuples, so copies can share them.

    ``row`` is what was asked, as the dataset processor made it; copies share it. ``early``: how it was decided that the
    answer stops early, where it does.
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
    """The edge's answer to a query. ``edge``: as Ianvs has it, without answers that a router asked for."""
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
    """Raise ValueError that names the first missing or wrong field; ``of_side`` requires ``usage``. Unknown fields
    pass."""
    try:
        msgspec.convert(response, _SideResponse if of_side else _Response)
    except (msgspec.ValidationError, OverflowError) as error:
        raise ValueError(str(error)) from error
