"""The settings ``emulate`` and ``emulate_scale``: another machine's speed, by a cost table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.records.identity import FileDigests

if TYPE_CHECKING:
    from ianvs_specdec.backends.emulation import Emulation
    from ianvs_specdec.engine.contracts import Drafter, Target
    from ianvs_specdec.engine.costs import CostTable

AUTO = "auto"
LARGEST_SCALE = 1e6
MEASURING = 20.0
"""Seconds at the most for measuring this machine, to choose a scale."""


@dataclass(frozen=True)
class Emulated:
    """The table of a ``file``, stretched by ``scale``; None = as far as this machine needs."""

    file: Path
    costs: CostTable
    scale: float | None

    @classmethod
    def parse(cls, options: Any, *, drafts: bool) -> Emulated | None:
        """Of a back end's options; None where nothing is emulated. Raises ``UserError`` with the key at fault.
        ``drafts``: the method does."""
        file = getattr(options, "emulate", None)
        if file is None:
            return None
        from ianvs_specdec.engine.costs import read

        costs = read(Path(file), key="emulate")
        if drafts and costs.draft is None:
            raise UserError(f"{file} has no draft costs, and this method drafts: name another table", key="emulate")
        return cls(Path(file), costs, None if options.emulate_scale == AUTO else options.emulate_scale)

    def identity(self, digests: FileDigests) -> dict[str, Any]:
        return {"table": digests.file(self.file), "scale": AUTO if self.scale is None else self.scale}

    def start(self, target: Target, drafter: Drafter, memory: int | None) -> Emulation:
        """The emulation for an engine over ``target``. Without a scale, this machine is measured first."""
        from ianvs_specdec.backends.emulation import Emulation, scale_for
        from ianvs_specdec.engine.loop import MAX_BATCH_SIZE
        from ianvs_specdec.targets.profiling import profile

        scale = self.scale
        if scale is None:
            scale = scale_for(self.costs, profile(target, drafter, MEASURING, memory=memory), MAX_BATCH_SIZE)
        return Emulation(self.costs, scale)
