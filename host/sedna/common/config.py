"""Sedna's settings, read from environment variables."""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ("BaseConfig", "Context")


class BaseConfig:
    """Settings read when this module is imported, as in Sedna."""

    device_category = os.getenv("DEVICE_CATEGORY", "CPU")
    backend_type = os.getenv("BACKEND_TYPE", "UNKNOWN")
    job_name = os.getenv("JOB_NAME", "sedna")
    namespace = os.getenv("NAMESPACE", "")
    worker_name = os.getenv("WORKER_NAME", "")
    service_name = os.getenv("SERVICE_NAME", "")
    model_url = os.getenv("MODEL_URL")
    model_name = os.getenv("MODEL_NAME")
    pretrained_model_url = os.getenv("PRETRAINED_MODEL_URL", "./")
    log_level = os.getenv("LOG_LEVEL", "INFO")

    @classmethod
    def get(cls, item: str, default: Any = "") -> Any:
        return getattr(cls, item, None) or default


class Context:
    """Parameters from environment variables: the name as given, then in upper case."""

    parameters = os.environ

    @classmethod
    def get_parameters(cls, param: str, default: Any = None) -> Any:
        return cls.parameters.get(param) or cls.parameters.get(str(param).upper()) or default

    @classmethod
    def get_algorithm_from_api(cls, algorithm: str, **param: Any) -> dict[str, Any]:
        """``{"method", "param"}`` from ``<ALGORITHM>_NAME`` and ``<ALGORITHM>_PARAMETERS`` (JSON)."""
        name = cls.get_parameters(f"{algorithm}_NAME")
        if not name:
            return {}
        try:
            pairs = json.loads(cls.get_parameters(f"{algorithm}_PARAMETERS") or "[]")
        except json.JSONDecodeError as error:
            raise ValueError(f"the environment variable {algorithm}_PARAMETERS is not JSON: {error}") from error
        return {"method": name, "param": {**{p["key"]: p.get("value", "") for p in pairs if "key" in p}, **param}}
