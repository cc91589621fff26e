from core.runner.base import Runner
from core.runner.config import RunConfig

__all__ = ["RunConfig", "Runner"]
