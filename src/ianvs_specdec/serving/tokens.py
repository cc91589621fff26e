"""``/tokenize``, ``/detokenize`` and ``/version``, as vLLM has them."""

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
from ianvs_specdec.serving.app import Service, read_body, refused
from ianvs_specdec.serving.refusal import Refusal
from ianvs_specdec.serving.requests import json_object, known, messages_of, sampling_of, take, wrong

LONGEST_BODY = 1 << 20
"""Bytes. While a tokenizer is at work, chats wait for it."""
MOST_WAITING = 16
REFUSED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    **dict.fromkeys(("continue_final_message", "return_token_strs"), (False,)),
    "tools": ([],),
}


def _full() -> Refusal:
    message = f"{MOST_WAITING} requests for tokens are waiting, which is the most this server lets wait"
    return Refusal(429, message, code="queue_full", kind="rate_limit_error", headers={"Retry-After": "1"})


def token_routes(llm: LLM, service: Service) -> list[Route]:
    """``llm`` must be loaded."""
    limited = replace(service, max_body=min(service.max_body, LONGEST_BODY))
    worker, places = ThreadPoolExecutor(1, thread_name_prefix="tokens"), asyncio.Semaphore(MOST_WAITING)

    def endpoint(path: str, answer: Callable[[Chat, Service, dict[str, Any]], dict[str, Any]], *read: str) -> Route:
        def work(body: bytes) -> Response:
            given = json_object(body)
            # As vLLM, without a model: the one that is served.
            asked = service.models[0] if given.get("model") is None else given["model"]
            given = known({**given, "model": asked}, service.models, ("model", *read), REFUSED)
            try:
                return JSONResponse(answer(require_tokenizer(llm).chat, service, given))
            except UserError as error:
                param = "messages" if isinstance(error, ChatTemplateError) else read[0]
                raise wrong(param, str(error)) from error

        async def reply(request: Request) -> Response:
            try:
                body = await read_body(request, limited)
                if places.locked():
                    raise _full()
                async with places:
                    return await asyncio.get_running_loop().run_in_executor(worker, work, body)
            except Refusal as refusal:
                return refused(refusal)
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


def _tokenize(chat: Chat, service: Service, given: dict[str, Any]) -> dict[str, Any]:
    text = take(given, "prompt", str, "a text")
    special = take(given, "add_special_tokens", bool, "true or false")
    asked = messages_of(given.get("messages")) if text is None else text
    ids = chat.encoded(asked, sampling_of(given, service.defaults), special=special)
    return {"count": len(ids), "max_model_len": chat.window, "tokens": ids}


def _detokenize(chat: Chat, service: Service, given: dict[str, Any]) -> dict[str, Any]:
    ids = take(given, "tokens", list, "a list of token ids")
    if ids is None or not all(type(i) is int for i in ids):
        raise wrong("tokens", "tokens must be a list of token ids")
    return {"prompt": chat.whole_text(ids) if ids else ""}
