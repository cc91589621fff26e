"""The time that a router took, kept with the answers: where these are replayed, it is theirs and not measured anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ianvs_specdec.answers.journal import Journal


class Routing(dict[str, Any]):
    """A router's record of a decision (see ``routers.base.Router``). ``key``: SHA-256 of the router, the query and the
    decision.
    """

    key: str = ""


def settled(record: Any, replayed: Any, journal: Journal) -> Any:
    """The record as it belongs to an answer: of a ``replayed`` one, with the ``seconds`` that were measured when the
    router first decided so. Else, and where they are not known, those just measured are kept in the journal.
    """
    if not isinstance(record, Routing) or record.get("seconds") is None:
        return dict(record) if isinstance(record, Mapping) else record
    known = journal.overhead(record.key) if replayed else None
    if known is None:
        journal.put_overhead(record.key, record["seconds"])
        return dict(record)
    return {**record, "seconds": known}
