"""What steps and drafts take, learned from as many steps as that may take time itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ianvs_specdec.lengths.costs import StepCosts
from ianvs_specdec.lengths.drafting import DraftCosts
from ianvs_specdec.lengths.savings import Allowance
from ianvs_specdec.lengths.sizes import class_of

if TYPE_CHECKING:
    from ianvs_specdec.decoding.scheduling import Finished, Share

HEARING, HEARD, FIRST = 9e-5, 0.005, 100
"""Learning from what a step took takes about so many seconds between steps of some milliseconds, which leave it no
place in the caches (of one right after the other each takes a quarter), and should take no more than that share of the
time: of short steps only some are learned from, at most so many of them in a row, as at the start. The lower the share,
the longer what is seldom seen may be taken for cheap; the higher, the less is left for steps."""
PAIR = 2
"""A machine's speed wanders, so a step tells most of its size beside the step before it, of another size: both are
learned from. So much stays saved for that; a step by itself is learned from where there is more."""
COLD = 40
"""After a step with prompts, caches hold what these needed: the next step takes longer and is not learned from.
Requests begin there, mostly with short drafts, which would seem to be dear. Where nothing was learned from for so many
steps, it is: a server may have hardly any others, and a change of its speed should not go unseen for longer."""


class Times:
    """Costs of the target's steps (``verify``) and of drafts (``draft``, in units of the target's ``speed``)."""

    def __init__(self) -> None:
        self.verify, self.draft = StepCosts(), DraftCosts()
        self._allowance = Allowance(HEARING, HEARD, FIRST + PAIR)
        self._made = self._cold = False
        self._passed = 0
        """Steps since the latest that was learned from."""
        self._before: Finished | None = None
        """The step before, if it was not learned from and may be yet."""
        self._class = 0
        """Of the size of the step before; 0: it is not to be compared with."""

    def earn(self, seconds: float) -> None:
        """A step took so long."""
        self._allowance.earn(seconds)

    def read(self) -> None:
        """A step only read prompts."""
        self._pass_by()
        self._cold, self._class = True, 0

    def hears(self, finished: Finished, made: bool) -> bool:
        """Whether the step is to be learned from; if so, and the step before it is the other of a pair, that one was
        learned from here. One that was ``made`` for that is in any case, and so is the one after it, with which it is
        compared."""
        anyway = self._made or made or not self.verify.warm
        cold, self._cold = self._cold and not finished.prompt_rows, finished.prompt_rows > 0
        self._made, size, before = made, class_of(finished.rows), self._class
        if cold and not anyway and self._passed < COLD:
            self._pass_by()
            self._before, self._class = finished, 0
            return False
        self._class, differs = size, before not in (0, size)
        if self._before and differs and not anyway and self._allowance.affords(PAIR):
            self._allowance.pay()
            asked = [share for share in self._before.shares if share.budget]
            self.learn(self._before, asked, bool(asked))
            self._before, self._passed = None, 0
        self._pass_by()
        paired = differs and not self._passed
        heard = (anyway or paired or self._allowance.affords(PAIR + 1)) and self._allowance.pay(anyway)
        if heard:
            self._passed = 0
        else:
            self._before = finished
        return heard

    def _pass_by(self) -> None:
        """The step before is not learned from."""
        if self._before:
            self.verify.pass_by()
            self._before, self._passed = None, self._passed + 1

    def learn(self, finished: Finished, asked: Sequence[Share], of_drafts: bool) -> None:
        """From a step in which the shares ``asked`` were to draft; ``of_drafts``: what drafting took as well."""
        drafting, requests = finished.draft_seconds, len(finished.shares)
        of_target = finished.seconds - drafting
        self.verify.add(finished.rows, of_target, finished.context, requests, finished.prompt_rows)
        if not of_drafts:
            return
        deepest = max([share.depth for share in asked], default=0)
        nodes = sum([share.step.drafted for share in asked])
        behind = sum([share.unread_tokens for share in asked])
        self.draft.add(requests, len(asked), deepest, nodes, behind, drafting / self.verify.speed)
