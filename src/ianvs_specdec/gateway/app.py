"""The endpoints of a gateway: those of any server, and one for feedback on answers."""

from __future__ import annotations

import logging
from typing import Annotated

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.types import Sampling
from ianvs_specdec.gateway.case import Case
from ianvs_specdec.gateway.gateway import Gateway
from ianvs_specdec.gateway.policies import Policies
from ianvs_specdec.serving.app import Service, create_app, read_body, refused
from ianvs_specdec.serving.protocol import Refusal

log = logging.getLogger(__name__)


class Feedback(msgspec.Struct):
    """What the answer of this id was worth."""

    id: str
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]


def create_gateway(
    case: Case, limits: tuple[Sampling, str, float, int, bool], queue: int, concurrency: int, fallback: float | None
) -> tuple[Starlette, Gateway]:
    """``limits``: of the ``Service``, after its models; the rest: see ``Gateway``."""
    gateway, service = Gateway(case, queue, concurrency, fallback), Service(Policies(case.router), *limits)

    async def feedback(request: Request) -> Response:
        try:
            given = msgspec.json.decode(await read_body(request, service), type=Feedback)
            await run_in_threadpool(gateway.lesson(given.id), given.score)
        except Refusal as refusal:
            return refused(refusal)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return refused(Refusal(400, f"feedback: {error}"))
        except UserError as error:
            # What was learned cannot be saved.
            log.error("%s", error)
        except ClientDisconnect:
            return Response(status_code=499)
        return JSONResponse(msgspec.to_builtins(given))

    return create_app(service, gateway, gateway.metrics, [Route("/feedback", feedback, methods=["POST"])]), gateway
