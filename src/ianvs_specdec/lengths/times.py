"""What steps and drafts take, learned from as many steps as that may take time itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ianvs_specdec.lengths.costs import StepCosts
from ianvs_specdec.lengths.drafting import DraftCosts
from ianvs_specdec.lengths.savings import Allowance

if TYPE_CHECKING:
    from ianvs_specdec.decoding.load import Finished, Share

HEARING, HEARD, FIRST = 5e-5, 0.005, 100
"""Learning from what a step took takes about so many seconds, and should take no more than that share of the time: of
short steps only some are learned from, at most so many of them in a row, as at the start. The lower
the share, the longer what is seldom seen may be taken for cheap; the higher, the less is left for steps."""


class Times:
    """Costs of the target's steps (``verify``) and of drafts (``draft``, in units of the target's ``speed``)."""

    def __init__(self) -> None:
        self.verify, self.draft = StepCosts(), DraftCosts()
        self._allowance = Allowance(HEARING, HEARD, FIRST)
        self._made = False

    def earn(self, seconds: float) -> None:
        """A step took so long."""
        self._allowance.earn(seconds)

    def hears(self, made: bool) -> bool:
        """Whether the step is to be learned from. One that was ``made`` for that is in any case, and so is the one
        after it, with which it is compared."""
        before, self._made = self._made, made
        heard = self._allowance.pay(anyway=made or before or not self.verify.warm)
        if not heard:
            self.verify.pass_by()
        return heard

    def learn(self, finished: Finished, asked: Sequence[Share], of_drafts: bool) -> None:
        """From a step in which the shares ``asked`` were to draft; ``of_drafts``: what drafting took as well."""
        drafting, requests = finished.draft_seconds, len(finished.shares)
        of_target = finished.seconds - drafting
        self.verify.add(finished.rows, of_target, finished.context, requests, finished.prompt_rows)
        if not of_drafts:
            return
        deepest = max((share.depth for share in asked), default=0)
        nodes = sum(share.step.drafted for share in asked)
        behind = sum(share.behind for share in asked)
        self.draft.add(len(asked), deepest, nodes, behind, drafting / self.verify.speed)
