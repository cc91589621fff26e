"""The OpenAI chat completions protocol: from a request's body to what the engine is asked, and the answer's form.

What a request leaves out is as the server's settings have it. What would change the answer and cannot be done is
refused by name; only what changes nothing (``user``, ``metadata``) is passed over. Beyond the protocol: ``top_k``,
``repetition_penalty``, ``min_tokens``, ``ignore_eos``, ``chat_template_kwargs``, and ``specdec: true`` for what the
engine counted (see ``details``).
"""

from __future__ import annotations

import itertools
import json
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ianvs_specdec.backends.api.stream import TRUNCATED
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import build
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling
from ianvs_specdec.serving.refusal import Refusal, check_model
from ianvs_specdec.serving.thoughts import ThoughtStream

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
PASSED_OVER = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("parallel_tool_calls", "request_id", "priority", "session_id", "cache_salt", "cache_prompt", "truncation_side"),
    "spaces_between_special_tokens",
)
IN_MESSAGES = (
    *("role", "content", "type", "name", "id", "status", "reasoning_content", "reasoning", "reasoning_details"),
    *("thinking_blocks", "annotations", "provider_specific_fields", "cache_control", "created_at", "timestamp"),
)
NOT_SUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("top_logprobs", "frequency_penalty", "presence_penalty", "min_p", "n_probs"), (0,)),
    **dict.fromkeys(("n", "best_of", "num_return_sequences", "length_penalty", "typical_p", "tfs_z"), (1,)),
    **dict.fromkeys(("tools", "functions", "stop_token_ids", "bad_words", "allowed_token_ids", "documents"), ([],)),
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    **dict.fromkeys(("skip_special_tokens", "add_generation_prompt", "include_reasoning"), (True,)),
    **dict.fromkeys(("use_beam_search", "echo", "continue_final_message", "add_special_tokens"), (False,)),
    **dict.fromkeys(("include_stop_str_in_output", "return_token_ids", "return_tokens_as_token_ids"), (False,)),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    **dict.fromkeys(("audio", "reasoning_effort", "verbosity", "web_search_options", "truncate_prompt_tokens"), ()),
}
"""Parameters that cannot be had, with the values that ask for nothing."""
READ = (
    *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
    *("top_k", "repetition_penalty", "min_tokens", "ignore_eos", "seed", "stop", "logprobs", "prediction", "specdec"),
    "chat_template_kwargs",
)
STOPS, STOP_LENGTH = 16, 256
LINE_ENDS = "\x85\u2028\u2029"
SEEDS = range(-(2**63), 2**63)
"""Whole numbers of 64 bits, as the protocol has them."""


@dataclass(frozen=True)
class ChatRequest:
    """What the engine is asked. ``stream``: piece by piece; ``usage``: with a usage chunk at the end of the stream;
    ``details``: with what the engine counted. ``given``: the request's parameters; ``model``: the name it asks for;
    ``id``: the answer's.
    """

    messages: list[Message]
    sampling: Sampling
    hints: Hints
    stream: bool
    usage: bool
    details: bool
    given: Mapping[str, Any]
    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")

    def with_defaults(self, defaults: Sampling) -> ChatRequest:
        """The same request of a model with other settings. Raises Refusal."""
        return replace(self, sampling=_sampling(self.given, defaults))


def served_name(model: str) -> str:
    """The name under which a model is served unless another is given: its path's last part, or its name on the hub."""
    return Path(model).resolve().name if Path(model).exists() else model


def parse(body: bytes, models: Sequence[str], defaults: Sampling) -> ChatRequest:
    """The request in ``body``, asked of one of the ``models``. Raises Refusal."""
    given = {name: value for name, value in _object(body).items() if value is not None}
    for name, value in given.items():
        if name in NOT_SUPPORTED and value not in NOT_SUPPORTED[name]:
            raise _wrong(name, f"{name} is not supported here", "unsupported_parameter")
        if name not in (*READ, *NOT_SUPPORTED, *PASSED_OVER):
            raise _wrong(name[:64], str(unknown("parameter", name[:64], READ)), "unknown_parameter")
    asked = _take(given, "model", str, "a text")
    if asked is None:
        raise _wrong("model", f"model is missing; this server has {', '.join(map(repr, models))}")
    check_model(asked, models)
    stream = _take(given, "stream", bool, "true or false") or False
    options = _take(given, "stream_options", dict, "an object") or {}
    if not stream and options:
        raise _wrong("stream_options", "stream_options is for requests with stream: true")
    details = _take(given, "specdec", bool, "true or false") or False
    return ChatRequest(
        _messages(given.get("messages")),
        _sampling(given, defaults),
        Hints(prediction=_prediction(given)),
        stream,
        details or _take(options, "include_usage", bool, "true or false", within="stream_options.") or False,
        details,
        given,
        asked,
    )


def _wrong(param: str, message: str, code: str | None = None) -> Refusal:
    return Refusal(400, message, param=param, code=code)


def _object(body: bytes) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        given = json.loads(body, parse_constant=refuse)
        # Half of a surrogate pair is a text in JSON, but no tokenizer takes it.
        json.dumps(given, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON in UTF-8: {error}"[:300]) from error
    if not isinstance(given, dict):
        raise Refusal(400, "the body must be a JSON object")
    return given


def _take(given: Mapping[str, Any], name: str, kinds: Any, what: str, within: str = "") -> Any:
    """The value of a parameter, None without one."""
    value = given.get(name)
    if value is None:
        return None
    proper = isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool))
    if not proper or (isinstance(value, float) and not math.isfinite(value)):
        raise _wrong(within + name, f"{within}{name} must be {what}")
    return value


def _messages(given: Any) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise _wrong("messages", "messages must be a list of at least one message")
    messages: list[Message] = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise _wrong(where, f"{where} must be an object with role and content")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise _wrong(f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}")
        # Clients hand a message back as they got it, with its empty fields.
        if others := [name for name, value in message.items() if value and name not in IN_MESSAGES]:
            param = f"{where}.{others[0]}"[:64]
            raise _wrong(param, f"{param} is not supported here", "unsupported_parameter")
        messages.append({"role": ROLES[role], "content": _text(message.get("content"), f"{where}.content")})
    return messages


def _text(content: Any, where: str) -> str:
    """A text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _wrong(where, f"{where} must be a text or a list of text parts")
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            param = f"{where}[{index}]"
            raise _wrong(param, f"{param} is not a text part; images, audio and files are not supported here")
    return "".join(part["text"] for part in content)


def _prediction(given: Mapping[str, Any]) -> str:
    prediction = _take(given, "prediction", dict, "an object")
    if prediction is None:
        return ""
    if prediction.get("type") != "content":
        raise _wrong("prediction.type", "prediction.type must be content")
    return _text(prediction.get("content"), "prediction.content")


def _sampling(given: Mapping[str, Any], defaults: Sampling) -> Sampling:
    limit = "max_completion_tokens" if given.get("max_completion_tokens") is not None else "max_tokens"
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "min_tokens", "ignore_eos", "seed", "logprobs")
    chosen = {name: given[name] for name in names if given.get(name) is not None}
    if isinstance(seed := chosen.get("seed"), int) and seed not in SEEDS:
        raise _wrong("seed", "seed must fit into 64 bits")
    # Other servers write -1 for no limit.
    if chosen.get("top_k") == -1:
        del chosen["top_k"]
    variables = _take(given, "chat_template_kwargs", dict, "an object") or {}
    chosen |= {
        "max_tokens": given[limit] if given.get(limit) is not None else defaults.max_tokens,
        "stop": _stop(given) or defaults.stop,
    }
    chosen["chat_template_kwargs"] = {**defaults.chat_template_kwargs, **variables}
    try:
        return build(Sampling, {**vars(defaults), **chosen})
    except UserError as error:
        message = str(error).replace("max_tokens", limit)
        raise _wrong(message.partition(" ")[0], message) from error


def _stop(given: Mapping[str, Any]) -> tuple[str, ...] | None:
    stop = _take(given, "stop", (str, list), "a text or a list of texts")
    if stop is None:
        return None
    strings = [stop] if isinstance(stop, str) else stop
    if len(strings) > STOPS or not all(isinstance(text, str) and 0 < len(text) <= STOP_LENGTH for text in strings):
        raise _wrong("stop", f"stop must be at most {STOPS} texts of 1 to {STOP_LENGTH} characters")
    return tuple(strings)


def usage(completion: Completion) -> dict[str, int]:
    return {
        "prompt_tokens": completion.prompt_tokens,
        "completion_tokens": completion.completion_tokens,
        "total_tokens": completion.prompt_tokens + completion.completion_tokens,
    }


def cut(completion: Completion) -> dict[str, int]:
    """How many tokens of the prompt were left out; nothing where an API behind this server is silent."""
    return {} if completion.truncated is None else {TRUNCATED: completion.truncated}


def details(completion: Completion) -> dict[str, Any]:
    """What the engine counted: ``steps`` as ``[drafted, accepted, emitted, verified]``, the output's ``token_ids``,
    ``near_ties`` as ``[output position, gap]``, how many tokens of the prompt were left out (``truncated``), and with
    ``logprobs`` what ``types.Trace`` says of them (``confidence``, ``characters``, ``letters``).
    """
    trace = completion.trace.to_json()
    return {
        "steps": trace["steps"],
        "token_ids": completion.token_ids,
        "near_ties": trace["near_ties"],
        "truncated": completion.truncated,
        **{name: trace[name] for name in ("confidence", "characters", "letters") if name in trace},
    }


def logprobs(completion: Completion) -> dict[str, Any] | None:
    """The protocol's ``logprobs``, without alternatives; None where they were not asked for. The token that ends an
    output is the empty text.
    """
    trace = completion.trace
    if trace.confidence is None or trace.characters is None:
        return None
    ends = list(itertools.accumulate(trace.characters))
    pieces = [completion.text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    content = [
        {"token": piece, "logprob": told[0], "bytes": list(piece.encode()), "top_logprobs": []}
        for piece, told in zip(pieces, trace.confidence, strict=True)
    ]
    return {"content": content, "refusal": None}


class Answer:
    """The form of one answer: a whole body, or the events of a stream. ``routing``: see ``engine.Job``."""

    def __init__(self, chat: ChatRequest) -> None:
        self._chat = chat
        self.routing: Mapping[str, Any] | None = None
        # Who asks for what the engine counted wants its text, a piece for each step.
        self._split = None if chat.details else ThoughtStream()
        self._head = {"id": chat.id, "created": int(time.time()), "model": chat.model}

    def body(self, completion: Completion) -> dict[str, Any]:
        thought, content = self._parts(completion.text, last=True)
        message = {"role": "assistant", "content": content, **_reasoning(thought)}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": logprobs(completion),
            "finish_reason": completion.finish_reason,
        }
        extra = {"specdec": details(completion)} if self._chat.details else {}
        told = {"choices": [choice], "usage": self._usage(completion), **cut(completion), **extra}
        return {**self._head, "object": "chat.completion", **told, **self._routed()}

    def first(self) -> bytes:
        return self._delta({"role": "assistant", "content": ""}, **self._routed())

    def piece(self, text: str, *, last: bool = False) -> bytes:
        thought, content = self._parts(text, last=last)
        told = {**_reasoning(thought), **({"content": content} if content else {})}
        return self._delta(told) if told else b""

    def last(self, completion: Completion) -> bytes:
        """The finish reason, with it how much of the prompt was cut and, if they are wanted, the log-probabilities of
        all tokens; the usage if it is wanted; the end of the stream.
        """
        end = {"index": 0, "delta": {}, "logprobs": logprobs(completion), "finish_reason": completion.finish_reason}
        events = self.piece("", last=True) + self._chunk(choices=[end], **cut(completion))
        if self._chat.usage:
            extra = {"specdec": details(completion)} if self._chat.details else {}
            events += self._chunk(choices=[], usage=self._usage(completion), **extra)
        return events + b"data: [DONE]\n\n"

    def _parts(self, text: str, *, last: bool) -> tuple[str, str]:
        return ("", text) if self._split is None else self._split(text, last=last)

    def _usage(self, completion: Completion) -> dict[str, Any]:
        if self._split is None or not self._split.found:
            return usage(completion)
        return {**usage(completion), "completion_tokens_details": {"reasoning_tokens": completion.trace.thinking}}

    def _routed(self) -> dict[str, Any]:
        return {} if self.routing is None else {"routing": dict(self.routing)}

    def _delta(self, delta: dict[str, str], **fields: Any) -> bytes:
        return self._chunk(choices=[{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}], **fields)

    def _chunk(self, **fields: Any) -> bytes:
        return event({**self._head, "object": "chat.completion.chunk", **fields})


def _reasoning(thought: str) -> dict[str, str]:
    """The field under the names of DeepSeek's API, llama.cpp and SGLang, and of vLLM and OpenRouter."""
    return dict.fromkeys(("reasoning_content", "reasoning"), thought) if thought else {}


def event(data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    # Lines end at line feeds here, but some clients take every character that Unicode calls a line end for one.
    for character in LINE_ENDS:
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f"data: {text}\n\n".encode()
