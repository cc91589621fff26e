"""Ianvs's logger, which plugin files import as ``from core.common.log import LOGGER``."""

from __future__ import annotations

from sedna.common.log import Logger

LOGGER = Logger("ianvs").logger
