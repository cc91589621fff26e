"""The first tokens of an answer, and an answer from two requests."""

from __future__ import annotations

from msgspec.structs import replace

from ianvs_specdec.common.types import Completion, Step, Trace
from ianvs_specdec.records.continuation import first_tokens, joined

TRACE = Trace(
    chunks=[(0.1, 1), (0.2, 3), (0.3, 2)],
    steps=[Step(4, 2, 3, 5), Step(2, 1, 2, 3)],
    near_ties=[(1, 0.1), (4, 0.2)],
    rejected=[(7,), ()],
    confidence=[(-0.1 * place, 0.2, 0.3) for place in range(6)],
    characters=[2, 3, 0, 4, 1, 0],
)
ANSWER = Completion("It is B. X", [5, 6, 7, 8, 9, 2], 11, 6, "stop", TRACE)


def test_it_is_cut_in_the_middle_of_a_step() -> None:
    first = first_tokens(ANSWER, 3)
    assert first is not None
    assert (first.text, first.token_ids, first.finish_reason) == ("It is", [5, 6, 7], "length")
    assert (first.prompt_tokens, first.completion_tokens) == (11, 3)
    assert first.trace.chunks == [(0.1, 1), (0.2, 2)]
    assert first.trace.steps == [Step(4, 2, 2, 5)]
    assert first.trace.near_ties == [(1, 0.1)]
    assert first.trace.confidence == TRACE.confidence[:3] if TRACE.confidence else False
    assert first_tokens(first, 3) is None


def test_without_a_step_for_the_prompt_s_token_all_tokens_are_of_steps() -> None:
    rooted = replace(ANSWER, trace=replace(TRACE, steps=[Step(4, 3, 4, 5), Step(2, 1, 2, 3)]))
    first = first_tokens(rooted, 5)
    assert first is not None
    assert [step.emitted for step in first.trace.steps] == [4, 1]


def test_a_short_answer_and_one_without_characters_have_no_beginning() -> None:
    assert first_tokens(ANSWER, 6) is None
    assert first_tokens(replace(ANSWER, trace=replace(TRACE, characters=None)), 2) is None


def test_an_answer_from_two_requests_has_what_both_took() -> None:
    begun = first_tokens(ANSWER, 3)
    assert begun is not None
    begun.trace.issued, begun.trace.busy = 7.0, None
    rest = Trace(
        chunks=[(0.5, 1), (0.6, 2)], steps=[Step(2, 1, 2, 3)], near_ties=[(0, 0.3)], confidence=[(0, 1, 2)] * 3
    )
    rest.issued, rest.busy = 9.0, 0.25
    whole = joined(begun, replace(ANSWER, prompt_tokens=14, trace=replace(rest, characters=TRACE.characters)))
    assert (whole.text, whole.token_ids, whole.prompt_tokens) == (ANSWER.text, ANSWER.token_ids, 11 + 14)
    assert whole.trace.chunks == [(0.1, 1), (0.2, 2), (0.2 + 0.5, 1), (0.2 + 0.6, 2)]
    assert whole.trace.steps == [*begun.trace.steps, Step(2, 1, 2, 3)]
    assert whole.trace.near_ties == [(1, 0.1), (3, 0.3)]
    assert len(whole.trace.confidence or ()) == 6
    assert (whole.trace.issued, whole.trace.busy) == (7.0, 0.2 + 0.25)
