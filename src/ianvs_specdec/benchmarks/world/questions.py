"""The knowledge and reasoning set: four options, a subject, one right letter (the shape of MMLU).

Facts are asked in wordings that training never uses, worked problems come from the test share (see ``skills.is_test``),
and the order of the options is drawn anew for each question.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from ianvs_specdec.benchmarks.world import skills
from ianvs_specdec.benchmarks.world.facts import Kind, Relation, World

LETTERS = "ABCD"
TWO_STEP = "two-step"
FACT_SUBJECTS = ("geography", "biography", "biology", "mineralogy")
SUBJECTS = (*FACT_SUBJECTS, TWO_STEP, *skills.SKILLS)

_TRAIN_FRAMES = (
    "What is the {np}?",
    "Name the {np}.",
    "Which of these is the {np}?",
    "Choose the {np}.",
    "The {np} is which of these?",
    "Do you know the {np}?",
    "Give the {np} from the list.",
    "Select the option that is the {np}.",
    "The list has the {np}. Which one is it?",
)
_TEST_FRAMES = ("Which option is the {np}?", "Select the {np} from the list.", "Which one of these is the {np}?")
_PRACTICE = [2 if subject in ("sequences", "code", "arithmetic") else 1 for subject in SUBJECTS]
GIVE_UP = 5000
"""Draws without a new question after which there are no more."""
_OPENERS = ("", "", "", "Tell me: ", "Question: ", "Please answer. ")


@dataclass(frozen=True)
class WorldQuestion:
    """One multiple-choice question; ``completion`` works it out and ends in answer and letter: ``12+30=42 (C).``"""

    subject: str
    level: int
    prompt: str
    letter: str
    completion: str


def question_of(item: WorldQuestion) -> str:
    """The question without its options, by which questions are told apart."""
    return item.prompt.split("\nA. ")[0]


def _with_options(
    rng: random.Random, subject: str, level: int, question: str, steps: str, right: str, wrong: list[str]
) -> WorldQuestion:
    options = [right, *wrong[:3]]
    rng.shuffle(options)
    letter = LETTERS[options.index(right)]
    lines = "\n".join(f"{mark}. {option}" for mark, option in zip(LETTERS, options, strict=True))
    # The letter follows the answer at once and in the form it has before the option: easy to learn, easy to parse.
    return WorldQuestion(subject, level, f"{question}\n{lines}", letter, f"{steps.removesuffix('.')} ({letter}).")


def _word(rng: random.Random, relation: Relation, subject: str, *, test: bool) -> str:
    """The question for one fact, in a wording of the test set or of training."""
    frames = _TEST_FRAMES if test else _TRAIN_FRAMES
    own = relation.unseen if test else relation.asks
    if rng.random() < 0.4:
        text = rng.choice(own).format(s=subject)
    else:
        text = rng.choice(frames).format(np=relation.noun.format(s=subject))
    return text if test else rng.choice(_OPENERS) + text


def _others(rng: random.Random, values: list[str], right: str) -> list[str]:
    return rng.sample([v for v in values if v != right], 3)


def _quartile(rank: int, kind: Kind) -> int:
    return 1 + 4 * rank // len(kind.names)


def fact_item(rng: random.Random, kind: Kind, rank: int, *, test: bool) -> WorldQuestion:
    """A question about the entity of a fame rank; the level is the quartile of the rank."""
    subject, relation = kind.names[rank], rng.choice(kind.relations)
    value = kind.facts[subject, relation.name]
    question = _word(rng, relation, subject, test=test)
    wrong = _others(rng, kind.values(relation.name), value)
    return _with_options(
        rng, kind.subject, _quartile(rank, kind), question, relation.says.format(s=subject, o=value), value, wrong
    )


def two_step_item(rng: random.Random, world: World, rank: int, *, test: bool) -> WorldQuestion:
    """A look-up through another: an attribute of the country in which a person was born."""
    people, countries = world.kinds["person"], world.kinds["country"]
    person = people.names[rank]
    home = people.facts[person, "birthplace"]
    relation = rng.choice(countries.relations)
    value = countries.facts[home, relation.name]
    question = _word(rng, relation, f"the home country of {person}", test=test)
    steps = f"{person} was born in {home}. {relation.says.format(s=home, o=value)}"
    wrong = _others(rng, countries.values(relation.name), value)
    return _with_options(rng, TWO_STEP, _quartile(rank, people), question, steps, value, wrong)


def skill_item(rng: random.Random, world: World, skill: str, level: int, *, test: bool) -> WorldQuestion:
    """A worked problem as a multiple-choice question."""
    problem = skills.draw(rng, skill, level, world, test=test)
    wrong = [w for w in dict.fromkeys(problem.wrong) if w != problem.answer]
    return _with_options(rng, problem.subject, level, problem.question, problem.steps, problem.answer, wrong)


def training_item(rng: random.Random, world: World) -> WorldQuestion:
    """One training question: subjects by the practice they take, entities by fame, levels evenly."""
    subject = rng.choices(SUBJECTS, _PRACTICE)[0]
    if subject in skills.SKILLS:
        return skill_item(rng, world, subject, rng.choice(skills.LEVELS), test=False)
    if subject == TWO_STEP:
        people = world.kinds["person"]
        return two_step_item(rng, world, rng.choices(range(len(people.names)), people.weights)[0], test=False)
    kind = next(k for k in world.kinds.values() if k.subject == subject)
    return fact_item(rng, kind, rng.choices(range(len(kind.names)), kind.weights)[0], test=False)


def test_items(world: World, per_subject: int, seed: str) -> list[WorldQuestion]:
    """The test set: ``per_subject`` different questions for each subject, entities and levels evenly. Of a subject that
    has not so many, all that ``GIVE_UP`` draws after the last new one have found; more of them begin with the same.
    """
    items: dict[str, WorldQuestion] = {}
    for subject in SUBJECTS:
        rng = random.Random(f"{seed}/{subject}")
        size = len(items) + per_subject
        latest = 0
        for attempt in itertools.count():
            if len(items) == size or attempt - latest > GIVE_UP:
                break
            if subject in skills.SKILLS:
                item = skill_item(rng, world, subject, skills.LEVELS[attempt % 4], test=True)
            elif subject == TWO_STEP:
                item = two_step_item(rng, world, rng.randrange(len(world.kinds["person"].names)), test=True)
            else:
                kind = next(k for k in world.kinds.values() if k.subject == subject)
                item = fact_item(rng, kind, rng.randrange(len(kind.names)), test=True)
            if (question := question_of(item)) not in items:
                items[question], latest = item, attempt
    return list(items.values())
