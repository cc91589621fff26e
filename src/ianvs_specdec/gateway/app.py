"""The endpoints of a gateway: those of any server, and one for feedback on answers."""

from __future__ import annotations

import json
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.gateway.case import Case
from ianvs_specdec.gateway.gateway import Gateway
from ianvs_specdec.gateway.policies import MODELS
from ianvs_specdec.routing.lifelong.feedback import Feedback
from ianvs_specdec.serving.app import Service, create_app, read_body
from ianvs_specdec.serving.refusal import Refusal


def create_gateway(
    case: Case, limits: tuple[Sampling, str, float, int], queue: int, concurrency: int, fallback: float | None
) -> tuple[Starlette, Gateway]:
    """``limits``: of the ``Service``, after its models; the rest: see ``Gateway``."""
    gateway, service = Gateway(case, queue, concurrency, fallback), Service(MODELS, *limits)

    async def feedback(request: Request) -> Response:
        try:
            name, score = _feedback(await read_body(request, service))
            await run_in_threadpool(gateway.lesson(name), score)
        except Refusal as refusal:
            return JSONResponse(refusal.body, refusal.status, headers=refusal.headers)
        except ClientDisconnect:
            return Response(status_code=499)
        return JSONResponse({"id": name, "score": score})

    return create_app(service, gateway, gateway.metrics, [Route("/feedback", feedback, methods=["POST"])]), gateway


def _feedback(body: bytes) -> tuple[str, float]:
    """The answer's id and what it was worth."""
    try:
        given: Any = json.loads(body)
        found = Feedback.parse({**given, "query_id": given["id"], "side": "edge"}, "feedback")
    except UserError as error:
        raise Refusal(400, str(error)) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Refusal(400, 'feedback is an object such as {"id": "chatcmpl-...", "score": 0.5}') from error
    return found.query, found.score
