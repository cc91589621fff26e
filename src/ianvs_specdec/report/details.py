"""Single queries with their answers, routing and tokens. Sizes are bounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from ianvs_specdec.backends import resolve
from ianvs_specdec.benchmarks.scorers import references_of
from ianvs_specdec.models.gguf.cache import gguf_of, import_folder
from ianvs_specdec.records.response import Response
from ianvs_specdec.report.metrics.table import Table
from ianvs_specdec.workspace.cases import Case, Dataset, Row, Workspace
from ianvs_specdec.workspace.judgments import Judgments

LONGEST_TEXT = 20_000
"""Characters of a question or answer; longer texts are cut."""
MAX_TOKENS = 2_048
"""Tokens of an answer; later ones are cut."""
LONGEST_CHARACTER = 16
"""Tokens without text after which the decoder restarts: it decodes them all again with each token."""


def choose(rows: Mapping[int, Row], most: int) -> list[int]:
    """Indices of up to ``most`` queries: failed ones, then those not lossless, then the rest, evenly spaced."""
    failed = [index for index, row in rows.items() if row[1].get("error")]
    differing = [
        index
        for index, row in rows.items()
        if any((turn.get("baseline") or {}).get("identical") is False for turn in row[1].get("turns", ()))
    ]
    first = list(dict.fromkeys([*failed, *differing]))[: (most + 1) // 2]
    rest = sorted(rows.keys() - set(first))
    wanted = min(most - len(first), len(rest))
    places = np.linspace(0, len(rest) - 1, wanted).astype(int) if wanted > 0 else ()
    return sorted([*first, *(rest[i] for i in places)])


class Details:
    """``queries`` and ``answers`` of all test cases, which entries refer to by index."""

    def __init__(self, workspace: Workspace) -> None:
        self.queries: list[dict[str, Any]] = []
        self.answers: list[dict[str, Any]] = []
        self._workspace = workspace
        self._query_places: dict[tuple[str, int], int] = {}
        self._answer_places: dict[tuple[str, str], int] = {}
        self._tokenizers: dict[str, Any] = {}

    def entries(
        self,
        case: Case,
        dataset: Dataset | None,
        rows: Mapping[int, Row],
        table: Table,
        judged: Mapping[int, Judgments],
        most: int,
    ) -> Iterator[dict[str, Any]]:
        """One entry per chosen query. ``table``: that of ``rows``, in the same order."""
        places = {index: place for place, index in enumerate(rows)}
        per_query = {name: table.query(name) for name in ("score", "ttft", "latency", "tokens", "steps", "emitted")}
        for index in choose(rows, most):
            _, result, edge, cloud = rows[index]
            routing = result.get("routing") or {}
            numbers = {name: _number(values[places[index]]) for name, values in per_query.items()}
            entry = {
                "query": self._query(case, dataset, index, result),
                "side": result.get("side"),
                "turns": [self._turn(result, turn) for turn in result.get("turns", ())],
                "routing": {key: routing[key] for key in ("router", "score", "seconds") if key in routing},
                "cost": result.get("cost"),
                **numbers,
            }
            if index in judged:
                entry["judgments"] = [[rating, _cut(text)] for rating, text, _ in judged[index]]
                entry["rules"] = [rule for _, _, rule in judged[index]]
            if result.get("error"):
                attempts = self._workspace.journal(case.job).failures(str(result.get("side")), str(result["error"]))
                entry |= {"error": _cut(str(result["error"])), "failures": attempts}
            if edge is not None and cloud is not None:
                other = edge if result.get("side") == "cloud" else cloud
                # An edge that only read the prompt has no turns.
                entry["before"] = [self._turn(other, turn) for turn in other.get("turns", ())] or None
            yield {key: value for key, value in entry.items() if value is not None and value != {}}

    def _query(self, case: Case, dataset: Dataset | None, index: int, result: Response) -> int:
        key = (str(case.config.get("dataset")), index)
        if key not in self._query_places:
            self._query_places[key] = len(self.queries)
            entry: dict[str, Any] = {"index": index, "id": result.get("query_id", ""), "group": result.get("group", "")}
            entry["scorer"] = result.get("scorer", "")
            if dataset is not None:
                query, gold = dataset.queries[index], dataset.golds[index]
                entry["turns"] = [_cut(turn) for turn in query.turns]
                entry["references"] = [_cut(text) for text in references_of(gold)]
                if query.system:
                    entry["system"] = _cut(query.system)
            self.queries.append(entry)
        return self._query_places[key]

    def _turn(self, response: Response, turn: Mapping[str, Any]) -> dict[str, Any]:
        """A turn of an entry: index of its answer, comparison with the baseline, whether it was replayed."""
        key = (str(turn.get("key")), str(response.get("backend")))
        if key not in self._answer_places or key[0] == "None":
            self._answer_places[key] = len(self.answers)
            self.answers.append(self._answer(response, turn))
        baseline = turn.get("baseline") or {}
        known = {name: baseline.get(name) for name in ("identical", "near_tie", "difference")}
        return {
            "answer": self._answer_places[key],
            **{name: value for name, value in known.items() if value is not None},
            **({"replayed": True} if turn.get("replayed") else {}),
        }

    def _answer(self, response: Response, turn: Mapping[str, Any]) -> dict[str, Any]:
        trace, ids = turn["trace"], list(turn.get("token_ids") or ())[:MAX_TOKENS]
        tokenizer = self._tokenizer(str(response.get("model")))
        usage = turn.get("usage") or {}
        answer: dict[str, Any] = {
            "text": _cut(str(turn.get("completion", ""))),
            "backend": resolve(str(response.get("backend", ""))),
            "model": response.get("model"),
            "finish": turn.get("finish_reason"),
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
            "truncated": turn.get("truncated"),
            "hardware": turn.get("hardware"),
            "key": str(turn.get("key") or "")[:16],
            "chunks": [[round(1000 * seconds, 3), tokens] for seconds, tokens in trace["chunks"][:MAX_TOKENS]],
            "kinds": kinds(len(ids), trace["steps"]),
            "near_ties": [position for position, _ in trace.get("near_ties") or ()],
            **{name: trace.get(name) for name in ("bytes_up", "bytes_down", "memory", "failures")},
        }
        if tokenizer is not None and ids:
            answer["tokens"] = pieces(tokenizer, ids)
        if trace["steps"] and any(trace.get("rejected") or ()):
            answer["rejected"] = rejected(tokenizer, ids, trace)
        return {name: value for name, value in answer.items() if value not in (None, [], "")}

    def _tokenizer(self, model: str) -> Any:
        """The model's tokenizer; None if unavailable."""
        if model not in self._tokenizers:
            folder = self._workspace.find(model)
            if folder is not None and (file := gguf_of(folder)) is not None:
                folder = import_folder(file)
            self._tokenizers[model] = None
            if folder is not None and (folder / "tokenizer.json").is_file():
                try:
                    from tokenizers import Tokenizer

                    self._tokenizers[model] = Tokenizer.from_file(str(folder / "tokenizer.json"))
                except Exception as error:  # the library raises bare Exceptions
                    self._workspace.notes.append(f"the tokenizer of {model} cannot be read: {error}")
        return self._tokenizers[model]


def kinds(tokens: int, steps: Sequence[Sequence[int]]) -> str:
    """One letter per token: ``p`` prefill, ``a`` accepted draft, ``t`` the target's token at the end of a step. Empty
    unless all steps are known."""
    if not steps or sum(step[2] for step in steps) + 1 < tokens:
        return ""
    # The last step may emit fewer tokens than it accepted.
    return ("p" + "".join("a" * step[1] + "t" * (step[2] - step[1]) for step in steps))[:tokens]


def pieces(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """The text that each token adds; empty within a character of several tokens and for special tokens."""
    from tokenizers.decoders import DecodeStream

    special = {number for number, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    stream, silent = DecodeStream(), 0
    found = []
    for token in map(int, ids):
        text = "" if token in special else stream.step(tokenizer, token) or ""
        silent = 0 if text or token in special else silent + 1
        if silent == LONGEST_CHARACTER:
            stream, silent = DecodeStream(), 0
        found.append(text)
    return found


def rejected(tokenizer: Any, ids: Sequence[int], trace: Mapping[str, Any]) -> list[list[Any]]:
    """``[index of the token, rejected draft text, number of its tokens]`` for each step with a rejection."""
    found, place = [], 1
    for step, drafted in zip_longest(trace["steps"], trace["rejected"] or (), fillvalue=()):
        if not step:
            break
        if drafted and (place + step[1]) < len(ids):
            text = tokenizer.decode([int(token) for token in drafted]) if tokenizer is not None else ""
            found.append([place + step[1], text, len(drafted)])
        place += step[2]
    return found


def _number(value: float) -> float | None:
    return float(f"{value:.6g}") if np.isfinite(value) else None


def _cut(text: str) -> str:
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[:LONGEST_TEXT]} ... ({len(text) - LONGEST_TEXT} more characters)"
