"""The endpoints of a gateway: those of a server, and ``/feedback``."""

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
from ianvs_specdec.gateway.models import ModelNames
from ianvs_specdec.serving.app import Service, create_app, error_response, read_body
from ianvs_specdec.serving.protocol import RequestError

log = logging.getLogger(__name__)


class Feedback(msgspec.Struct):
    """The score of the answer with this id."""

    id: str
    score: Annotated[float, msgspec.Meta(ge=0, le=1)]


def create_gateway(
    case: Case, limits: tuple[Sampling, str, float, int, bool], queue: int, concurrency: int, fallback: float | None
) -> tuple[Starlette, Gateway]:
    """``limits``: fields of ``Service`` after its models; others: see ``Gateway``."""
    gateway, service = Gateway(case, queue, concurrency, fallback), Service(ModelNames(case.router), *limits)

    async def feedback(request: Request) -> Response:
        try:
            given = msgspec.json.decode(await read_body(request, service), type=Feedback)
            await run_in_threadpool(gateway.feedback(given.id), given.score)
        except RequestError as error:
            return error_response(error)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return error_response(RequestError(400, f"feedback: {error}"))
        except UserError as error:
            # The router has learned but cannot save it.
            log.error("%s", error)
        except ClientDisconnect:
            return Response(status_code=499)
        return JSONResponse(msgspec.to_builtins(given))

    return create_app(service, gateway, gateway.metrics, [Route("/feedback", feedback, methods=["POST"])]), gateway
