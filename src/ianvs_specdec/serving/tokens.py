"""``/tokenize``, ``/detokenize`` and ``/version``, as in vLLM."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ianvs_specdec import __version__
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.local import require_tokenizer
from ianvs_specdec.backends.prompts import Chat
from ianvs_specdec.common.errors import ChatTemplateError, UserError
from ianvs_specdec.serving.app import Service, error_response, read_body
from ianvs_specdec.serving.protocol import RequestError, invalid
from ianvs_specdec.serving.requests import BOOL, json_object, known_params, parse_messages, sampling_of, take

MAX_BODY = 1 << 20
"""Bytes. Chats wait for the tokenizer."""
MAX_WAITING = 16
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    **dict.fromkeys(("continue_final_message", "return_token_strs"), (False,)),
    "tools": ([],),
}


def token_routes(llm: LLM, service: Service) -> list[Route]:
    """``llm`` must be loaded."""
    limited = replace(service, max_body=min(service.max_body, MAX_BODY))
    worker, slots = ThreadPoolExecutor(1, thread_name_prefix="tokens"), asyncio.Semaphore(MAX_WAITING)

    def endpoint(path: str, answer: Callable[[Chat, Service, dict[str, Any]], dict[str, Any]], *names: str) -> Route:
        def work(body: bytes) -> Response:
            params = json_object(body)
            # As in vLLM, the model may be missing.
            model = service.models[0] if params.get("model") is None else params["model"]
            params = known_params({**params, "model": model}, service.models, ("model", *names), UNSUPPORTED)
            try:
                return JSONResponse(answer(require_tokenizer(llm).chat, service, params))
            except UserError as error:
                param = "messages" if isinstance(error, ChatTemplateError) else names[0]
                raise invalid(param, str(error)) from error

        async def reply(request: Request) -> Response:
            try:
                body = await read_body(request, limited)
                if slots.locked():
                    message = f"{MAX_WAITING} tokenizer requests are waiting, the maximum of this server"
                    headers = {"Retry-After": "1"}
                    raise RequestError(429, message, code="queue_full", kind="rate_limit_error", headers=headers)
                async with slots:
                    return await asyncio.get_running_loop().run_in_executor(worker, work, body)
            except RequestError as error:
                return error_response(error)
            except ClientDisconnect:
                return Response(status_code=499)

        return Route(path, reply, methods=["POST"])

    def version(request: Request) -> Response:
        return JSONResponse({"version": __version__})

    prompts = ("prompt", "messages", "add_special_tokens", "chat_template_kwargs")
    return [
        endpoint("/tokenize", _tokenize, *prompts),
        endpoint("/detokenize", _detokenize, "tokens"),
        Route("/version", version),
    ]


def _tokenize(chat: Chat, service: Service, params: dict[str, Any]) -> dict[str, Any]:
    text = take(params, "prompt", str, "a string")
    special = take(params, "add_special_tokens", bool, BOOL)
    prompt = parse_messages(params.get("messages")) if text is None else text
    ids = chat.encoded(prompt, sampling_of(params, service.defaults), special=special)
    return {"count": len(ids), "max_model_len": chat.window, "tokens": ids}


def _detokenize(chat: Chat, service: Service, params: dict[str, Any]) -> dict[str, Any]:
    ids = take(params, "tokens", list, "a list of token ids")
    if ids is None or not all(type(i) is int for i in ids):
        raise invalid("tokens", "tokens must be a list of token ids")
    return {"prompt": chat.whole_text(ids) if ids else ""}
