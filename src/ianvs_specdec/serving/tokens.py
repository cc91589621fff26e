"""``/tokenize``, ``/detokenize`` and ``/version``, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ianvs_specdec import __version__
from ianvs_specdec.backends.base import LLM
from ianvs_specdec.backends.loaded import loaded
from ianvs_specdec.backends.prompts import Chat
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.serving.app import Service, read_body, refused
from ianvs_specdec.serving.refusal import Refusal
from ianvs_specdec.serving.requests import json_object, known, messages_of, take, wrong

READ = ("model", "prompt", "messages", "add_special_tokens", "chat_template_kwargs", "tokens")
REFUSED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    **dict.fromkeys(("continue_final_message", "return_token_strs"), (False,)),
    "tools": ([],),
}


def token_routes(llm: LLM, service: Service) -> list[Route]:
    """``llm`` must be loaded."""

    def endpoint(path: str, answer: Callable[[Chat, Service, dict[str, Any]], dict[str, Any]]) -> Route:
        async def reply(request: Request) -> Response:
            try:
                body = {"model": service.models[0], **json_object(await read_body(request, service))}
                given = known(body, service.models, READ, REFUSED)
                # A long text takes a while.
                return JSONResponse(await asyncio.to_thread(answer, loaded(llm).chat, service, given))
            except Refusal as refusal:
                return refused(refusal)
            except UserError as error:
                return refused(Refusal(400, str(error)))
            except ClientDisconnect:
                return Response(status_code=499)

        return Route(path, reply, methods=["POST"])

    def version(request: Request) -> Response:
        return JSONResponse({"version": __version__})

    return [endpoint("/tokenize", _tokenize), endpoint("/detokenize", _detokenize), Route("/version", version)]


def _tokenize(chat: Chat, service: Service, given: dict[str, Any]) -> dict[str, Any]:
    text = take(given, "prompt", str, "a text")
    special = take(given, "add_special_tokens", bool, "true or false")
    if text is None and special:
        raise wrong("add_special_tokens", "add_special_tokens is not supported here for messages")
    variables = take(given, "chat_template_kwargs", dict, "an object") or {}
    defaults = service.defaults
    sampling = replace(defaults, chat_template_kwargs={**defaults.chat_template_kwargs, **variables})
    asked = messages_of(given.get("messages")) if text is None else text
    ids = chat.encoded(asked, sampling, special=special is not False)
    return {"count": len(ids), "max_model_len": chat.window, "tokens": ids}


def _detokenize(chat: Chat, service: Service, given: dict[str, Any]) -> dict[str, Any]:
    ids = take(given, "tokens", list, "a list of token ids") or []
    if not all(type(i) is int for i in ids):
        raise wrong("tokens", "tokens must be a list of token ids")
    return {"prompt": chat.whole_text(ids)}
