"""The embedded world: deterministic, kept apart from training, and every shipped file is what the code makes."""

import random
from pathlib import Path

import pytest

from ianvs_specdec.benchmarks.world import facts, questions, skills
from ianvs_specdec.commands.cli import main
from tests.support.lines import rows_in
from tests.support.paths import EXAMPLE


def question_of(prompt: str) -> str:
    return prompt.split("\nA. ")[0]


KNOWLEDGE, OPEN_ENDED = "knowledge/test.jsonl", "open-ended/test.jsonl"


@pytest.mark.parametrize(
    ("name", "file"),
    [("knowledge", KNOWLEDGE), ("knowledge-train", "knowledge/train.jsonl"), ("open-ended", OPEN_ENDED)],
)
def test_the_shipped_files_are_what_the_command_writes(name: str, file: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert main(["data", "prepare", "world", "--set", name, "--out", str(out)]) == 0
    assert out.read_text(encoding="utf-8") == (EXAMPLE / "dataset" / file).read_text(encoding="utf-8")


@pytest.mark.parametrize("count", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_training_never_sees_a_question_of_the_test_set(count: int) -> None:
    world = facts.build()
    asked = {question_of(item.prompt) for item in questions.test_items(world, 32, "test")}
    rng = random.Random(7)
    trained = (questions.training_item(rng, world).prompt for _ in range(count))
    assert not asked & {question_of(prompt) for prompt in trained}


@pytest.mark.parametrize("count", [40, pytest.param(250, marks=pytest.mark.slow)])
def test_routers_can_have_more_questions_to_learn_from_and_none_of_the_test_set(tmp_path: Path, count: int) -> None:
    def made(*arguments: str) -> list[str]:
        out = tmp_path / "out.jsonl"
        assert main(["data", "prepare", "world", "--set", "knowledge-train", *arguments, "--out", str(out)]) == 0
        return [question_of(row["question"]["turns"][0]) for row in rows_in(out)]

    many = made("--per-subject", str(count), "--seed", "1")
    # Of sequences there are not so many.
    assert len(many) == len(set(many)) > 10 * count
    test = rows_in(EXAMPLE / "dataset" / KNOWLEDGE)
    assert not set(many) & {question_of(row["question"]["turns"][0]) for row in test}
    few = made("--per-subject", "10", "--seed", "1")
    assert few[:10] == many[:10]
    assert few[10:20] == many[count : count + 10]
    assert few != made("--per-subject", "10")


def test_a_steeper_tail_is_the_same_world_with_rarer_mentions_of_its_tail() -> None:
    even, steep = facts.build(), facts.build(tail=3.0)
    for name, kind in even.kinds.items():
        assert steep.kinds[name].facts == kind.facts
        shares = [sum(one.weights[-5:]) / sum(one.weights) for one in (kind, steep.kinds[name])]
        assert shares[1] < shares[0] / 3
    rng = random.Random(1)
    levels = [[skills.any_level(rng, world) for _ in range(4000)] for world in (even, steep)]
    assert [round(one.count(4) / 4000, 1) for one in levels] == [0.2, 0.0]
    assert levels[1].count(1) > 3 * levels[1].count(2) > 6 * levels[1].count(3) > 0


@pytest.mark.parametrize("subject", questions.SUBJECTS)
def test_every_solution_ends_in_the_right_option_and_its_letter(subject: str) -> None:
    items = [item for item in questions.test_items(facts.build(), 40, "check") if item.subject == subject]
    for item in items:
        options = dict(line.split(". ", 1) for line in item.prompt.split("\n")[-4:])
        assert item.completion.endswith(f"{options[item.letter]} ({item.letter}).")


def test_code_prints_what_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    world, rng = facts.build(), random.Random(6)
    for level in skills.LEVELS * 5:
        problem = skills.draw(rng, "code", level, world, test=True)
        exec(problem.question.split("\n", 1)[1], {})
        assert capsys.readouterr().out.strip() == problem.answer
