"""Settings that Sedna takes from environment variables."""

from __future__ import annotations

import os
from typing import Any

__all__ = ("BaseConfig", "Context")


class BaseConfig:
    """Read once, when this module is imported, as Sedna does."""

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
    """The environment variables as parameters; a name is also tried in capitals."""

    parameters = os.environ

    @classmethod
    def get_parameters(cls, param: str, default: Any = None) -> Any:
        return cls.parameters.get(param) or cls.parameters.get(str(param).upper()) or default
