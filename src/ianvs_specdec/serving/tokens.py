"""``/tokenize``, ``/detokenize`` and ``/version``, as vLLM has them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ianvs_specdec import __version__
from ianvs_specdec.backends.base import LLM, Asked
from ianvs_specdec.common.errors import UserError
from ianvs_specdec.serving.app import Service, read_body, refused
from ianvs_specdec.serving.refusal import Refusal
from ianvs_specdec.serving.requests import json_object, known, messages_of, take, wrong

READ = ("model", "prompt", "messages", "add_special_tokens", "return_token_strs", "chat_template_kwargs", "tokens")
REFUSED: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "tools": ([],),
    "chat_template": (),
}


def token_routes(llm: LLM, service: Service) -> list[Route]:
    """``llm`` must be loaded."""

    def endpoint(path: str, answer: Callable[[LLM, Service, dict[str, Any]], dict[str, Any]]) -> Route:
        async def reply(request: Request) -> Response:
            try:
                body = {"model": service.models[0], **json_object(await read_body(request, service))}
                given = known(body, service.models, READ, REFUSED)
                # A long text takes a while.
                return JSONResponse(await asyncio.to_thread(answer, llm, service, given))
            except Refusal as refusal:
                return refused(refusal)
            except UserError as error:
                return refused(Refusal(400, str(error)))

        return Route(path, reply, methods=["POST"])

    async def version(request: Request) -> Response:
        return JSONResponse({"version": __version__})

    return [endpoint("/tokenize", _tokenize), endpoint("/detokenize", _detokenize), Route("/version", version)]


def _tokenize(llm: LLM, service: Service, given: dict[str, Any]) -> dict[str, Any]:
    text = take(given, "prompt", str, "a text")
    special = take(given, "add_special_tokens", bool, "true or false")
    if text is None and special:
        raise wrong("add_special_tokens", "add_special_tokens is not supported here for messages")
    asked: Asked = messages_of(given.get("messages")) if text is None else text
    variables = take(given, "chat_template_kwargs", dict, "an object") or {}
    defaults = service.defaults
    sampling = replace(defaults, chat_template_kwargs={**defaults.chat_template_kwargs, **variables})
    ids = llm.tokenize(asked, sampling, special=special is not False)
    told: dict[str, Any] = {"count": len(ids), "max_model_len": llm.window, "tokens": ids}
    if take(given, "return_token_strs", bool, "true or false"):
        told["token_strs"] = [llm.detokenize((i,)) for i in ids]
    return told


def _detokenize(llm: LLM, service: Service, given: dict[str, Any]) -> dict[str, Any]:
    ids = take(given, "tokens", list, "a list of token ids") or []
    if not ids or not all(type(i) is int for i in ids):
        raise wrong("tokens", "tokens must be a list of at least one token id")
    return {"prompt": llm.detokenize(tuple(ids))}
