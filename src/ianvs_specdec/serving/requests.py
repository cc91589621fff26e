"""Parsing of request bodies for ``/v1/chat/completions`` and ``/v1/completions``.

Unsupported parameters that would change the answer are rejected; parameters without effect are ignored.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ianvs_specdec.backends.base import LLM, OnChunk, RawPrompt
from ianvs_specdec.backends.local import TokenizingLLM, require_tokenizer
from ianvs_specdec.common.errors import UserError, unknown
from ianvs_specdec.common.settings import validated
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling
from ianvs_specdec.serving.protocol import RequestError, check_model, invalid

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
IGNORED = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
    *("parallel_tool_calls", "request_id", "priority", "session_id", "cache_salt", "cache_prompt", "truncation_side"),
    "spaces_between_special_tokens",
)
MESSAGE_KEYS = (
    *("role", "content", "type", "name", "id", "status", "reasoning_content", "reasoning", "reasoning_details"),
    *("thinking_blocks", "annotations", "provider_specific_fields", "cache_control", "created_at", "timestamp"),
)
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("frequency_penalty", "presence_penalty", "min_p", "n_probs"), (0,)),
    **dict.fromkeys(("best_of", "num_return_sequences", "length_penalty", "typical_p", "tfs_z"), (1,)),
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
"""Unsupported parameters of chats, with their values that have no effect."""
UNSUPPORTED_WITH_PROMPTS = {**UNSUPPORTED, "echo": (True, False), "suffix": ("",), "add_special_tokens": (True,)}
SUPPORTED = (
    *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
    *("top_k", "repetition_penalty", "min_tokens", "ignore_eos", "seed", "stop", "logprobs", "prediction", "specdec"),
    *("chat_template_kwargs", "n", "top_logprobs"),
)
SUPPORTED_WITH_PROMPTS = (
    *({*SUPPORTED} - {"messages", "max_completion_tokens", "top_logprobs", "prediction", "chat_template_kwargs"}),
    *("prompt", "echo", "suffix", "add_special_tokens"),
)
MAX_STOPS, MAX_STOP_LENGTH = 16, 256
MAX_CHOICES, MAX_TOP = 128, 20
SEEDS = range(-(2**63), 2**63)
BOOL = "true or false"


@dataclass(frozen=True)
class ChatRequest:
    """A parsed request: ``messages`` of a chat, or ``prompts`` without a chat template.

    ``usage``: the stream ends with a usage chunk; ``details``: the answer has the field ``specdec``; ``n``: choices per
    prompt, of which this is number ``choice``; ``total``: choices of all prompts; ``echo``: the answer begins with the
    prompt; ``prompt_only``: the answer is the prompt.
    """

    messages: list[Message]
    sampling: Sampling
    hints: Hints
    stream: bool
    usage: bool
    details: bool
    params: Mapping[str, Any]
    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    n: int = 1
    choice: int = 0
    total: int = 1
    prompts: tuple[RawPrompt, ...] = ()
    echo: bool = False
    prompt_only: bool = False
    by_defaults: dict[Sampling, Sampling] = field(default_factory=dict)
    """Cache of ``with_defaults`` for all choices: validating long ``chat_template_kwargs`` is slow."""

    @property
    def scored(self) -> bool:
        """Whether the log-probabilities of the prompt's tokens are requested."""
        return self.echo and "logprobs" in self.params

    def choices(self) -> list[ChatRequest]:
        """One request per choice, prompt by prompt."""
        prompts: list[tuple[RawPrompt, ...]] = [(prompt,) for prompt in self.prompts] or [()]
        return [replace(self, prompts=prompt, choice=index) for prompt in prompts for index in range(self.n)]

    def with_defaults(self, defaults: Sampling) -> ChatRequest:
        """The same request with other default parameters. Raises RequestError."""
        if defaults not in self.by_defaults:
            self.by_defaults[defaults] = sampling_of(self.params, defaults)
        return replace(self, sampling=self.by_defaults[defaults])

    def ask(self, llm: LLM, on_chunk: OnChunk | None, hints: Hints) -> Completion:
        """Generate one choice; choices have successive seeds, as in vLLM. Raises RequestError if the back end does not
        support the request."""
        sampling, scored = self.sampling, self.scored
        if self.choice or self.echo:
            logprobs = scored if self.echo else sampling.logprobs
            sampling = replace(sampling, seed=sampling.seed + self.choice, logprobs=logprobs)
        self._check(llm, sampling)
        if not self.prompts:
            return llm.generate(self.messages, sampling, on_chunk, hints)
        model, prompt = require_tokenizer(llm), self.prompts[0]
        if not self.echo:
            return model.generate(prompt, sampling, on_chunk, hints)
        ids = tuple(model.chat.encoded(prompt, sampling, hints))
        pieces = model.chat.pieces(list(ids))
        text = prompt if isinstance(prompt, str) and not scored else "".join(pieces)
        if on_chunk is not None:
            on_chunk(text, 0)
        on_output = None if self.prompt_only else on_chunk
        completion = model.generate(ids, sampling, on_output, replace(hints, scored=scored))
        trace = completion.trace
        if scored:
            trace.letters, trace.characters = [], [*map(len, pieces), *(trace.characters or ())]
        if self.prompt_only:
            end = -completion.completion_tokens
            trace.confidence = trace.confidence and trace.confidence[:end]
            trace.characters = trace.characters and trace.characters[:end]
            trace.top = trace.top[:end]
            completion.text, completion.completion_tokens = "", 0
        completion.text = text + completion.text
        return completion

    def _check(self, llm: LLM, sampling: Sampling) -> None:
        if self.prompts and not isinstance(llm, TokenizingLLM):
            raise invalid("model", f"the back end {llm.backend} takes chats only: use /v1/chat/completions")
        if (self.hints.top or self.scored) and not getattr(llm, "scores", False):
            what = "a prompt's tokens" if self.scored else "alternatives"
            param = "logprobs" if self.prompts else "top_logprobs"
            raise invalid(param, f"{param}: the back end {llm.backend} has no log-probabilities of {what}")
        try:
            llm.check(sampling)
        except UserError as error:
            raise RequestError(400, str(error), param=error.key) from error


def parse_chat(body: bytes, models: Sequence[str], defaults: Sampling) -> ChatRequest:
    """Parse a chat request for one of the ``models``. Raises RequestError."""
    params = known_params(json_object(body), models, SUPPORTED, UNSUPPORTED)
    top = _integer(params, "top_logprobs", 0, MAX_TOP) or 0
    if top and params.get("logprobs") is not True:
        raise invalid("top_logprobs", "top_logprobs requires logprobs: true")
    hints = Hints(prediction=_prediction(params), top=top)
    return _request(params, parse_messages(params.get("messages")), sampling_of(params, defaults), hints)


def parse_completion(body: bytes, models: Sequence[str], defaults: Sampling) -> ChatRequest:
    """Parse a completion request: a text, token ids, or a list of either. Raises RequestError."""
    params = known_params(json_object(body), models, SUPPORTED_WITH_PROMPTS, UNSUPPORTED_WITH_PROMPTS)
    prompts = _prompts(params.get("prompt"))
    echo = take(params, "echo", bool, BOOL) or False
    max_tokens = params.get("max_tokens")
    # Neither False nor 0.0.
    if prompt_only := echo and type(max_tokens) is int and max_tokens == 0:
        if params.get("min_tokens"):
            raise invalid("min_tokens", "min_tokens must be from 0 to max_tokens (0)")
        # The engine generates at least one token.
        params |= {"max_tokens": 1, "min_tokens": 0}
    if (top := _integer(params, "logprobs", 0, MAX_TOP)) is not None:
        params["logprobs"] = True
    request = _request(params, [], sampling_of(params, defaults), Hints(top=top or 0), len(prompts))
    if request.total > MAX_CHOICES:
        raise invalid("prompt", f"prompt and n ask for {request.total} choices; the maximum is {MAX_CHOICES}")
    if echo and top is not None and request.n > 1:
        raise invalid("n", "n must be 1 with echo and logprobs: a prompt is scored once")
    name = f"cmpl-{uuid.uuid4().hex}"
    return replace(request, prompts=prompts, echo=echo, prompt_only=prompt_only, id=name)


def known_params(
    body: Mapping[str, Any], models: Sequence[str], supported: tuple[str, ...], unsupported: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters that are not null. Raises RequestError for unknown and unsupported ones, and for the model."""
    params = {name: value for name, value in body.items() if value is not None}
    for name, value in params.items():
        if name in unsupported and value not in unsupported[name]:
            raise invalid(name, f"{name} is not supported here", "unsupported_parameter")
        if name not in (*supported, *unsupported, *IGNORED):
            raise invalid(name[:64], str(unknown("parameter", name[:64], supported)), "unknown_parameter")
    model = take(params, "model", str, "a string")
    if model is None:
        raise invalid("model", f"model is missing; this server has {', '.join(map(repr, models))}")
    check_model(model, models)
    return params


def _request(
    params: Mapping[str, Any], messages: list[Message], sampling: Sampling, hints: Hints, prompts: int = 1
) -> ChatRequest:
    stream = take(params, "stream", bool, BOOL) or False
    options = take(params, "stream_options", dict, "an object") or {}
    if not stream and options:
        raise invalid("stream_options", "stream_options requires stream: true")
    details = take(params, "specdec", bool, BOOL) or False
    n = _integer(params, "n", 1, MAX_CHOICES) or 1
    total = n * prompts
    if details and total > 1:
        raise invalid("specdec", "specdec is for requests with one choice")
    usage = details or take(options, "include_usage", bool, BOOL, within="stream_options.") or False
    return ChatRequest(messages, sampling, hints, stream, usage, details, params, params["model"], n=n, total=total)


def json_object(body: bytes) -> dict[str, Any]:
    def reject(constant: str) -> None:
        raise ValueError(f"{constant} is not a JSON number")

    try:
        value = json.loads(body, parse_constant=reject)
        # JSON allows half of a surrogate pair, tokenizers do not.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON in UTF-8: {error}"[:300]) from error
    if not isinstance(value, dict):
        raise RequestError(400, "the body must be a JSON object")
    return value


def take(params: Mapping[str, Any], name: str, kinds: Any, what: str, within: str = "") -> Any:
    """The value of a parameter, None if missing. Raises RequestError for other types."""
    value = params.get(name)
    if value is None:
        return None
    valid = isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool))
    if not valid or (isinstance(value, float) and not math.isfinite(value)):
        raise invalid(within + name, f"{within}{name} must be {what}")
    return value


def _integer(params: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value: int | None = take(params, name, int, what := f"an integer from {low} to {high}")
    if value is not None and not low <= value <= high:
        raise invalid(name, f"{name} must be {what}")
    return value


def _prompts(value: Any) -> tuple[RawPrompt, ...]:
    entries = value if isinstance(value, list) and value and isinstance(value[0], str | list) else [value]
    prompts = [tuple(entry) if isinstance(entry, list) else entry for entry in entries]
    for prompt in prompts:
        ids = isinstance(prompt, tuple) and prompt and all(type(i) is int for i in prompt)
        if not ids and (not isinstance(prompt, str) or not prompt):
            raise invalid("prompt", "prompt must be a string, a list of token ids, or a list of either, and not empty")
    return tuple(prompts)


def parse_messages(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise invalid("messages", "messages must be a list of at least one message")
    messages: list[Message] = []
    for index, message in enumerate(value):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise invalid(where, f"{where} must be an object with role and content")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise invalid(f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}")
        # Clients send messages back as they received them, with empty fields.
        if others := [name for name, value in message.items() if value and name not in MESSAGE_KEYS]:
            param = f"{where}.{others[0]}"[:64]
            raise invalid(param, f"{param} is not supported here", "unsupported_parameter")
        messages.append({"role": ROLES[role], "content": _text(message.get("content"), f"{where}.content")})
    return messages


def _text(content: Any, where: str) -> str:
    """A string, or the text of a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(where, f"{where} must be a string or a list of text parts")
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            param = f"{where}[{index}]"
            raise invalid(param, f"{param} is not a text part; images, audio and files are not supported here")
    return "".join(part["text"] for part in content)


def _prediction(params: Mapping[str, Any]) -> str:
    prediction = take(params, "prediction", dict, "an object")
    if prediction is None:
        return ""
    if prediction.get("type") != "content":
        raise invalid("prediction.type", "prediction.type must be content")
    return _text(prediction.get("content"), "prediction.content")


def sampling_of(params: Mapping[str, Any], defaults: Sampling) -> Sampling:
    """Sampling parameters of a request. Raises RequestError."""
    limit = "max_completion_tokens" if params.get("max_completion_tokens") is not None else "max_tokens"
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "min_tokens", "ignore_eos", "seed", "logprobs")
    chosen = {name: params[name] for name in names if params.get(name) is not None}
    if isinstance(seed := chosen.get("seed"), int) and seed not in SEEDS:
        raise invalid("seed", "seed must fit into 64 bits")
    # In vLLM, -1 means no limit.
    if chosen.get("top_k") == -1:
        del chosen["top_k"]
    variables = take(params, "chat_template_kwargs", dict, "an object") or {}
    chosen |= {
        "max_tokens": params[limit] if params.get(limit) is not None else defaults.max_tokens,
        "stop": _stop(params) or defaults.stop,
        "chat_template_kwargs": {**defaults.chat_template_kwargs, **variables},
    }
    try:
        return validated(Sampling, {**vars(defaults), **chosen})
    except UserError as error:
        message = str(error).replace("max_tokens", limit)
        raise invalid(message.partition(" ")[0], message) from error


def _stop(params: Mapping[str, Any]) -> tuple[str, ...] | None:
    stop = take(params, "stop", (str, list), "a string or a list of strings")
    if stop is None:
        return None
    stops = [stop] if isinstance(stop, str) else stop
    if len(stops) > MAX_STOPS or not all(isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH for text in stops):
        raise invalid("stop", f"stop must be at most {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters")
    return tuple(stops)
