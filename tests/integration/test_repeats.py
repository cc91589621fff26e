"""``repeats`` in the job file: every repeat has answers of its own, and a later run replays them all."""

from __future__ import annotations

import re

from tests.support.counting_api import CountingAPI
from tests.support.harness import Workplace, questions


def test_every_repeat_asks_for_itself_and_is_replayed_as_such(workplace: Workplace, api: CountingAPI) -> None:
    workplace.on_api(api.url)
    workplace.data(questions(6, 2))
    workplace.algorithms("CloudOnly")
    path = workplace.example / "benchmarkingjob.yaml"
    path.write_text(re.sub(r"\n  name: .*\n", "\\g<0>  repeats: 3\n", path.read_text(encoding="utf-8"), count=1))
    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    assert len(api.asked) == 3 * (6 + 2 * 2)
    keys = [line["key"] for line in workplace.journal()]
    assert len(set(keys)) == len(keys) == len(api.asked)

    outcome = workplace.ianvs()
    assert outcome.code == 0, outcome.output
    assert not outcome.lines("generated again")
    assert len(outcome.lines("replayed 8")) == 3
    assert len(api.asked) == len(keys), "a repeat was asked again"

    path.write_text(path.read_text(encoding="utf-8").replace("  repeats: 3\n", ""))
    assert workplace.ianvs().code == 0
    assert len(api.asked) == len(keys), "the first repeat is the run without repeats"
