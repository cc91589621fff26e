"""From a request's body to what the engine is asked, for ``/v1/chat/completions`` and ``/v1/completions``.

Parameters that would change the answer and are not supported are refused; those without effect are ignored.
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
from ianvs_specdec.common.settings import build
from ianvs_specdec.common.types import Completion, Hints, Message, Sampling
from ianvs_specdec.serving.refusal import Refusal, check_model

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
"""Parameters that cannot be had, with the values that ask for nothing."""
NOT_WITH_PROMPTS = {**NOT_SUPPORTED, "echo": (True, False), "suffix": ("",), "add_special_tokens": (True,)}
READ = (
    *("model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", "temperature", "top_p"),
    *("top_k", "repetition_penalty", "min_tokens", "ignore_eos", "seed", "stop", "logprobs", "prediction", "specdec"),
    *("chat_template_kwargs", "n", "top_logprobs"),
)
READ_WITH_PROMPTS = (
    *({*READ} - {"messages", "max_completion_tokens", "top_logprobs", "prediction", "chat_template_kwargs"}),
    *("prompt", "echo", "suffix", "add_special_tokens"),
)
STOPS, STOP_LENGTH = 16, 256
MOST_CHOICES, MOST_TOP = 128, 20
SEEDS = range(-(2**63), 2**63)
"""Whole numbers of 64 bits, as the protocol has them."""


@dataclass(frozen=True)
class ChatRequest:
    """What the engine is asked: a chat, or prompts without a chat template."""

    messages: list[Message]
    sampling: Sampling
    hints: Hints
    stream: bool
    usage: bool
    """Whether the stream ends with a usage chunk."""
    details: bool
    """Whether the answer has what the engine counted."""
    given: Mapping[str, Any]
    """The request's parameters."""
    model: str
    """The name that is asked for."""
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    """The answer's."""
    n: int = 1
    """Choices for each prompt."""
    choice: int = 0
    """Which of them this is."""
    total: int = 1
    """Choices for all prompts."""
    prompts: tuple[RawPrompt, ...] = ()
    echo: bool = False
    """Whether the answer begins with the prompt."""
    alone: bool = False
    """Whether it is the prompt only."""
    settled: dict[Sampling, Sampling] = field(default_factory=dict)
    """By the defaults, for all choices: to check long ``chat_template_kwargs`` takes a while."""

    @property
    def scored(self) -> bool:
        """Whether the prompt's own tokens have log-probabilities."""
        return self.echo and "logprobs" in self.given

    def choices(self) -> list[ChatRequest]:
        """The requests of the choices, prompt by prompt."""
        prompts: list[tuple[RawPrompt, ...]] = [(prompt,) for prompt in self.prompts] or [()]
        return [replace(self, prompts=prompt, choice=index) for prompt in prompts for index in range(self.n)]

    def with_defaults(self, defaults: Sampling) -> ChatRequest:
        """The same request of a model with other settings. Raises Refusal."""
        if defaults not in self.settled:
            self.settled[defaults] = sampling_of(self.given, defaults)
        return replace(self, sampling=self.settled[defaults])

    def ask(self, llm: LLM, on_chunk: OnChunk | None, hints: Hints) -> Completion:
        """The answer of ``llm`` to one choice; seeds of choices follow each other, as in vLLM. Raises Refusal where the
        back end cannot be asked for it."""
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
        put_out = None if self.alone else on_chunk
        completion = model.generate(ids, sampling, put_out, replace(hints, scored=scored))
        trace = completion.trace
        if scored:
            trace.letters, trace.characters = [], [*map(len, pieces), *(trace.characters or ())]
        if self.alone:
            end = -completion.completion_tokens
            trace.confidence = trace.confidence and trace.confidence[:end]
            trace.characters = trace.characters and trace.characters[:end]
            trace.top = trace.top[:end]
            completion.text, completion.completion_tokens = "", 0
        completion.text = text + completion.text
        return completion

    def _check(self, llm: LLM, sampling: Sampling) -> None:
        if self.prompts and not isinstance(llm, TokenizingLLM):
            raise wrong("model", f"the back end {llm.backend} takes chats only: ask /v1/chat/completions")
        if (self.hints.top or self.scored) and not getattr(llm, "scores", False):
            what = "a prompt's tokens" if self.scored else "alternatives"
            param = "logprobs" if self.prompts else "top_logprobs"
            raise wrong(param, f"{param}: the back end {llm.backend} has no log-probabilities of {what}")
        try:
            llm.check(sampling)
        except UserError as error:
            raise Refusal(400, str(error), param=error.key) from error


def parse(body: bytes, models: Sequence[str], defaults: Sampling) -> ChatRequest:
    """The chat in ``body``, asked of one of the ``models``. Raises Refusal."""
    given = known(json_object(body), models, READ, NOT_SUPPORTED)
    top = _whole(given, "top_logprobs", 0, MOST_TOP) or 0
    if top and given.get("logprobs") is not True:
        raise wrong("top_logprobs", "top_logprobs is for requests with logprobs: true")
    hints = Hints(prediction=_prediction(given), top=top)
    return _request(given, messages_of(given.get("messages")), sampling_of(given, defaults), hints)


def parse_completion(body: bytes, models: Sequence[str], defaults: Sampling) -> ChatRequest:
    """As ``parse``, for prompts without a chat template: a text, token ids, or a list of either."""
    given = known(json_object(body), models, READ_WITH_PROMPTS, NOT_WITH_PROMPTS)
    prompts = _prompts(given.get("prompt"))
    echo = take(given, "echo", bool, "true or false") or False
    most = given.get("max_tokens")
    # Not false and not 0.0.
    if alone := echo and type(most) is int and most == 0:
        if given.get("min_tokens"):
            raise wrong("min_tokens", "min_tokens must be from 0 to max_tokens (0)")
        # The engine puts out a token at least.
        given |= {"max_tokens": 1, "min_tokens": 0}
    if (top := _whole(given, "logprobs", 0, MOST_TOP)) is not None:
        given["logprobs"] = True
    request = _request(given, [], sampling_of(given, defaults), Hints(top=top or 0), len(prompts))
    if request.total > MOST_CHOICES:
        raise wrong("prompt", f"prompt and n ask for {request.total} choices; {MOST_CHOICES} are the most")
    if echo and top is not None and request.n > 1:
        raise wrong("n", "n must be 1 with echo and logprobs: a prompt is scored once")
    name = f"cmpl-{uuid.uuid4().hex}"
    return replace(request, prompts=prompts, echo=echo, alone=alone, id=name)


def known(
    body: Mapping[str, Any], models: Sequence[str], read: tuple[str, ...], refused: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """The parameters that are given. Raises Refusal for one that is not among those to be ``read``."""
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        if name in refused and value not in refused[name]:
            raise wrong(name, f"{name} is not supported here", "unsupported_parameter")
        if name not in (*read, *refused, *PASSED_OVER):
            raise wrong(name[:64], str(unknown("parameter", name[:64], read)), "unknown_parameter")
    asked = take(given, "model", str, "a text")
    if asked is None:
        raise wrong("model", f"model is missing; this server has {', '.join(map(repr, models))}")
    check_model(asked, models)
    return given


def _request(
    given: Mapping[str, Any], messages: list[Message], sampling: Sampling, hints: Hints, prompts: int = 1
) -> ChatRequest:
    stream = take(given, "stream", bool, "true or false") or False
    options = take(given, "stream_options", dict, "an object") or {}
    if not stream and options:
        raise wrong("stream_options", "stream_options is for requests with stream: true")
    details = take(given, "specdec", bool, "true or false") or False
    n = _whole(given, "n", 1, MOST_CHOICES) or 1
    total = n * prompts
    if details and total > 1:
        raise wrong("specdec", "specdec is for requests with one choice")
    usage = details or take(options, "include_usage", bool, "true or false", within="stream_options.") or False
    return ChatRequest(messages, sampling, hints, stream, usage, details, given, given["model"], n=n, total=total)


def wrong(param: str, message: str, code: str | None = None) -> Refusal:
    return Refusal(400, message, param=param, code=code)


def json_object(body: bytes) -> dict[str, Any]:
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


def take(given: Mapping[str, Any], name: str, kinds: Any, what: str, within: str = "") -> Any:
    """The value of a parameter, None without one."""
    value = given.get(name)
    if value is None:
        return None
    proper = isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool))
    if not proper or (isinstance(value, float) and not math.isfinite(value)):
        raise wrong(within + name, f"{within}{name} must be {what}")
    return value


def _whole(given: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    value: int | None = take(given, name, int, what := f"a whole number from {least} to {most}")
    if value is not None and not least <= value <= most:
        raise wrong(name, f"{name} must be {what}")
    return value


def _prompts(given: Any) -> tuple[RawPrompt, ...]:
    entries = given if isinstance(given, list) and given and isinstance(given[0], str | list) else [given]
    prompts = [tuple(entry) if isinstance(entry, list) else entry for entry in entries]
    for prompt in prompts:
        ids = isinstance(prompt, tuple) and prompt and all(type(i) is int for i in prompt)
        if not ids and (not isinstance(prompt, str) or not prompt):
            raise wrong("prompt", "prompt must be a text, a list of token ids, or a list of either, and not empty")
    return tuple(prompts)


def messages_of(given: Any) -> list[Message]:
    if not isinstance(given, list) or not given:
        raise wrong("messages", "messages must be a list of at least one message")
    messages: list[Message] = []
    for index, message in enumerate(given):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise wrong(where, f"{where} must be an object with role and content")
        role = message.get("role")
        if not isinstance(role, str) or role not in ROLES:
            raise wrong(f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}")
        # Clients hand a message back as they got it, with its empty fields.
        if others := [name for name, value in message.items() if value and name not in IN_MESSAGES]:
            param = f"{where}.{others[0]}"[:64]
            raise wrong(param, f"{param} is not supported here", "unsupported_parameter")
        messages.append({"role": ROLES[role], "content": text_of(message.get("content"), f"{where}.content")})
    return messages


def text_of(content: Any, where: str) -> str:
    """A text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(where, f"{where} must be a text or a list of text parts")
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            param = f"{where}[{index}]"
            raise wrong(param, f"{param} is not a text part; images, audio and files are not supported here")
    return "".join(part["text"] for part in content)


def _prediction(given: Mapping[str, Any]) -> str:
    prediction = take(given, "prediction", dict, "an object")
    if prediction is None:
        return ""
    if prediction.get("type") != "content":
        raise wrong("prediction.type", "prediction.type must be content")
    return text_of(prediction.get("content"), "prediction.content")


def sampling_of(given: Mapping[str, Any], defaults: Sampling) -> Sampling:
    """As the parameters that are ``given`` ask for it. Raises Refusal."""
    limit = "max_completion_tokens" if given.get("max_completion_tokens") is not None else "max_tokens"
    names = ("temperature", "top_p", "top_k", "repetition_penalty", "min_tokens", "ignore_eos", "seed", "logprobs")
    chosen = {name: given[name] for name in names if given.get(name) is not None}
    if isinstance(seed := chosen.get("seed"), int) and seed not in SEEDS:
        raise wrong("seed", "seed must fit into 64 bits")
    # Other servers write -1 for no limit.
    if chosen.get("top_k") == -1:
        del chosen["top_k"]
    variables = take(given, "chat_template_kwargs", dict, "an object") or {}
    chosen |= {
        "max_tokens": given[limit] if given.get(limit) is not None else defaults.max_tokens,
        "stop": _stop(given) or defaults.stop,
    }
    chosen["chat_template_kwargs"] = {**defaults.chat_template_kwargs, **variables}
    try:
        return build(Sampling, {**vars(defaults), **chosen})
    except UserError as error:
        message = str(error).replace("max_tokens", limit)
        raise wrong(message.partition(" ")[0], message) from error


def _stop(given: Mapping[str, Any]) -> tuple[str, ...] | None:
    stop = take(given, "stop", (str, list), "a text or a list of texts")
    if stop is None:
        return None
    strings = [stop] if isinstance(stop, str) else stop
    if len(strings) > STOPS or not all(isinstance(text, str) and 0 < len(text) <= STOP_LENGTH for text in strings):
        raise wrong("stop", f"stop must be at most {STOPS} texts of 1 to {STOP_LENGTH} characters")
    return tuple(strings)
