"""The decoding core: one loop over a target, a drafter and a speculation length."""

from ianvs_specdec.common.errors import ContextWindowError
from ianvs_specdec.engine.contracts import Context, Drafter, Observation, Output, Target
from ianvs_specdec.engine.length import FinishedStep, Length, Load, RequestStep, Stats
from ianvs_specdec.engine.loop import Decoded, decode
from ianvs_specdec.engine.stopping import StopStrings
from ianvs_specdec.engine.tree import TokenTree

__all__ = [
    "Context",
    "ContextWindowError",
    "Decoded",
    "Drafter",
    "FinishedStep",
    "Length",
    "Load",
    "Observation",
    "Output",
    "RequestStep",
    "Stats",
    "StopStrings",
    "Target",
    "TokenTree",
    "decode",
]
