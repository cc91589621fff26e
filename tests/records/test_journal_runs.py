"""Several runs on one journal: one asks at a time, the others may read."""

from __future__ import annotations

from pathlib import Path

import pytest

from ianvs_specdec.common.errors import UserError
from ianvs_specdec.common.storage import claim as claim_module
from tests.records.test_journal import configuration, fill, messages, open_journal
from tests.support.holding import held


def test_one_run_at_a_time_asks_for_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_module, "PATIENCE", 0.01)
    fill(tmp_path, 1)
    with held(tmp_path) as process:
        journal = open_journal(tmp_path, "run-2")
        with pytest.raises(UserError, match=f"in use by another run, process {process.pid} on "):
            journal.ensure_writable()
        assert journal.get(configuration().key(messages(0))) is not None, "what is known may be read"
        # The run that is there writes an answer, and ends.
        fill(tmp_path, 2)
        process.kill()
        process.wait()
        journal.ensure_writable()
        assert journal.get(configuration().key(messages(1))) is not None
    with pytest.raises(AssertionError), held(tmp_path):
        pass
    journal.rest()
    with held(tmp_path):
        pass
