"""Sedna's logger."""

from __future__ import annotations

import logging
import sys

from sedna.common.config import BaseConfig


class ScreenHandler(logging.Handler):
    """Writes to standard error, above the progress bar if one is active."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            bar = sys.modules.get("tqdm")
            if bar is not None:
                bar.tqdm.write(self.format(record), file=sys.stderr)
            else:
                print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


class Logger:
    """A named logger that writes to standard error: ``Logger(name).logger``."""

    def __init__(self, name: str = BaseConfig.job_name) -> None:
        self.logger = logging.getLogger(name)
        handler = ScreenHandler()
        handler.setFormatter(logging.Formatter("[%(asctime)s] %(filename)s(%(lineno)d) [%(levelname)s] - %(message)s"))
        self.logger.handlers = [handler]
        self.logger.setLevel(BaseConfig.log_level)
        self.logger.propagate = False


LOGGER = Logger().logger
