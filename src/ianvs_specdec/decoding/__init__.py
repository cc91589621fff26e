"""The decoding core: one loop over a target, a drafter and a speculation length."""

from ianvs_specdec.decoding.contracts import Context, Drafter, Observation, Output, Target
from ianvs_specdec.decoding.loop import Decoded, decode
from ianvs_specdec.decoding.scheduling import Finished, Length, Load, Share, Stats
from ianvs_specdec.decoding.stopping import StopStrings
from ianvs_specdec.decoding.target import HuggingFaceTarget
from ianvs_specdec.decoding.targets import target_of
from ianvs_specdec.decoding.tree import TokenTree
from ianvs_specdec.errors import ContextWindowError

__all__ = [
    "Context",
    "ContextWindowError",
    "Decoded",
    "Drafter",
    "Finished",
    "HuggingFaceTarget",
    "Length",
    "Load",
    "Observation",
    "Output",
    "Share",
    "Stats",
    "StopStrings",
    "Target",
    "TokenTree",
    "decode",
    "target_of",
]
