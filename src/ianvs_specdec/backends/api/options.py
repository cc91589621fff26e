"""The options of the back end ``api``."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from ianvs_specdec.common.settings import Settings, Text

LONGEST_SECONDS = 1e6
"""Eleven days; what is much longer no socket waits."""
Seconds = Annotated[float, Field(ge=0.001, le=LONGEST_SECONDS)]
PerMinute = Annotated[float, Field(ge=0.001, le=1e9)]


class ApiOptions(Settings):
    """The options of ``api``. Rejected requests (4xx) are not repeated, except 408, 409, 425 and 429. Limits are over
    all endpoints; a token is reckoned as four characters of prompt, plus ``max_tokens``, until the server has counted.
    """

    api_base_url: Text = Field(
        "OPENAI_BASE_URL", description="a URL, or the environment variable that holds it, as one with a password must"
    )
    api_key_env: Text = Field(
        "OPENAI_API_KEY", description="the environment variable that holds the key; not needed on this machine"
    )
    api_ca: Text | None = Field(
        None, description="a PEM file of the certificates to trust in place of the system's, as of a private CA"
    )
    api_endpoints: Annotated[list[Any], Field(min_length=1)] | None = Field(
        None, description="several servers in place of one, each with base_url and perhaps key_env, weight, model"
    )
    api_provider: Literal["openai"] = Field("openai", description="the protocol; other providers have URLs for it")
    api_timeout: Seconds = Field(60.0, description="seconds without a sign of life until an attempt is given up")
    api_deadline: Seconds = Field(600.0, description="seconds for an answer with all its attempts and its waiting")
    api_retries: Annotated[int, Field(ge=0, le=10**9)] = Field(5, description="attempts after the first")
    api_retry_budget: Annotated[float, Field(ge=0, le=1e9)] = Field(
        0.2, description="repeated attempts of all requests, as a share of them; the first ten are free"
    )
    api_concurrency: Annotated[int, Field(ge=1, le=10**9)] | None = Field(None, description="requests in flight")
    api_rate: PerMinute | None = Field(None, description="requests per minute")
    api_token_rate: PerMinute | None = Field(None, description="tokens per minute")
    api_extra_body: dict[str, Any] | None = Field(
        None, description="merged into the request; null removes a key; specdec: true asks specdec serve for steps"
    )
    api_baseline: dict[str, Any] | None = Field(
        None, description="with specdec: true, the settings of autoregressive decoding that Lossless compares with"
    )
