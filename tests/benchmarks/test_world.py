"""The embedded world: deterministic, kept apart from training, and every shipped file is what the code makes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ianvs_specdec.benchmarks.world import dataset, facts, outcomes, questions, skills
from ianvs_specdec.benchmarks.world.drift import ROUND
from ianvs_specdec.benchmarks.world.questions import question_of
from ianvs_specdec.commands.cli import main
from tests.support.jsonl import read_jsonl
from tests.support.paths import EXAMPLE

SHIPPED = {
    "knowledge": "knowledge/test",
    "knowledge-train": "knowledge/train",
    "open-ended": "open-ended/test",
    "drift": "drift/test",
    "drift-train": "drift/train",
}


def made(tmp_path: Path, name: str, *arguments: str) -> Path:
    out = tmp_path / "out.jsonl"
    assert main(["data", "prepare", "world", "--set", name, *arguments, "--out", str(out)]) == 0
    return out


def asked(path: Path) -> list[tuple[str, str]]:
    """Subject and question of each row."""
    rows = [row["question"] for row in read_jsonl(path)]
    return [(row["group"], row["turns"][0].split("\nA. ")[0]) for row in rows]


def shipped(name: str) -> list[tuple[str, str]]:
    return asked(EXAMPLE / "dataset" / f"{SHIPPED[name]}.jsonl")


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_files_are_what_the_command_writes(name: str, tmp_path: Path) -> None:
    assert made(tmp_path, name).read_bytes() == (EXAMPLE / "dataset" / f"{SHIPPED[name]}.jsonl").read_bytes()


@pytest.mark.parametrize("count", [40, pytest.param(250, marks=pytest.mark.slow)])
def test_routers_can_have_more_questions_to_learn_from_and_none_of_the_test_set(tmp_path: Path, count: int) -> None:
    many = asked(made(tmp_path, "knowledge-train", "--per-subject", str(count), "--seed", "1"))
    # Of sequences there are not so many.
    assert len(many) == len(set(many)) > 10 * count
    assert not set(many) & set(shipped("knowledge"))
    few = asked(made(tmp_path, "knowledge-train", "--per-subject", "10", "--seed", "1"))
    assert (few[:10], few[10:20]) == (many[:10], many[count : count + 10])
    assert few != asked(made(tmp_path, "knowledge-train", "--per-subject", "10"))


def test_the_stream_drifts_from_skills_to_facts_and_back_without_a_repetition() -> None:
    stream, train = shipped("drift"), shipped("drift-train")
    is_skill = [subject in skills.SKILLS for subject, _ in stream]
    assert is_skill == [True] * ROUND + [False] * 2 * ROUND + [True] * ROUND
    assert {subject for subject, _ in stream} == set(questions.SUBJECTS)
    assert {subject for subject, _ in train} == set(skills.SKILLS)
    texts = [text for _, text in (*stream, *train)]
    assert len(set(texts)) == len(texts)
    assert not set(texts) & {text for _, text in shipped("knowledge")}


def test_the_shipped_router_learned_from_nothing_that_it_is_judged_by() -> None:
    known = [*dataset.knowledge(), *dataset.knowledge_train()]
    learned, judged = outcomes.to_learn_from(known), outcomes.to_judge(known)
    assert not set(map(question_of, learned)) & set(map(question_of, [*known, *judged]))
    assert not set(map(question_of, judged)) & set(map(question_of, known))
    assert len(judged) == len(set(map(question_of, judged))) > 1000
    prompts = [item.prompt for item in learned]
    assert len(prompts) == len(set(prompts)) > 7000
    sets = [dataset.SETS[name]() for name in ("knowledge-train", "router-train", "router-check")]
    ids = [row["question"]["id"] for rows in sets for row in rows]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("count", [4_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_training_never_sees_a_question_of_the_test_set(count: int) -> None:
    world = facts.build()
    rng = random.Random(7)
    trained = {question_of(questions.training_item(rng, world)) for _ in range(count)}
    assert not trained & set(map(question_of, questions.test_items(world, 32, "test")))


def test_a_steeper_tail_is_the_same_world_with_rarer_mentions_of_its_tail() -> None:
    even, steep = facts.build(), facts.build(tail=3.0)
    for name, kind in even.kinds.items():
        assert steep.kinds[name].facts == kind.facts
        shares = [sum(one.weights[-5:]) / sum(one.weights) for one in (kind, steep.kinds[name])]
        assert shares[1] < shares[0] / 3
    rng = random.Random(1)
    levels = [[skills.any_level(rng, world) for _ in range(4000)] for world in (even, steep)]
    assert [round(one.count(4) / 4000, 1) for one in levels] == [0.2, 0.0]


def test_every_solution_ends_in_the_right_option_and_its_letter() -> None:
    for item in questions.test_items(facts.build(), 40, "check"):
        options = dict(line.split(". ", 1) for line in item.prompt.split("\n")[-4:])
        assert item.completion.endswith(f"{options[item.letter]} ({item.letter}).")


def test_code_prints_what_is_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    world, rng = facts.build(), random.Random(6)
    for level in skills.LEVELS * 5:
        problem = skills.draw(rng, "code", level, world, test=True)
        exec(problem.question.split("\n", 1)[1], {})
        assert capsys.readouterr().out.strip() == problem.answer
