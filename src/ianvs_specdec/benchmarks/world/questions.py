"""The knowledge and reasoning set: four options, a subject, one right letter (the shape of MMLU).

Facts are asked in wordings that training never uses, worked problems come from the test share (see ``skills.is_test``),
and the order of the options is drawn anew for each question.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

from ianvs_specdec.benchmarks.extraction import FOUR_LETTERS
from ianvs_specdec.benchmarks.world import skills
from ianvs_specdec.benchmarks.world.facts import Kind, Relation, World
from ianvs_specdec.benchmarks.world.skills import Problem

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
    prompt: str
    letter: str
    completion: str


def question_of(item: WorldQuestion) -> str:
    """The question without its options, its identity."""
    return item.prompt.split("\nA. ")[0]


def draw(
    rng: random.Random, world: World, subject: str, *, test: bool, level: int | None = None, by_fame: bool = False
) -> WorldQuestion:
    """A question of a subject, for the test set or for training.

    A worked problem is of this ``level``, or of any. A fact is about an entity drawn ``by_fame``, or evenly.
    """
    if subject in skills.SKILLS:
        level = level or skills.any_level(rng, world)
        return _with_options(rng, subject, skills.draw(rng, subject, level, world, test=test))
    if subject == TWO_STEP:
        person = world.kinds["person"].pick(rng, by_fame=by_fame)
        return _with_options(rng, subject, _two_step(rng, world, person, test=test))
    kind = next(kind for kind in world.kinds.values() if kind.subject == subject)
    return _with_options(rng, subject, _fact(rng, kind, kind.pick(rng, by_fame=by_fame), test=test))


def _with_options(rng: random.Random, subject: str, problem: Problem) -> WorldQuestion:
    options = [problem.answer, *[w for w in dict.fromkeys(problem.wrong) if w != problem.answer][:3]]
    rng.shuffle(options)
    letter = FOUR_LETTERS[options.index(problem.answer)]
    lines = "\n".join(f"{mark}. {option}" for mark, option in zip(FOUR_LETTERS, options, strict=True))
    # The letter follows the answer at once and in the form it has before the option: easy to learn, easy to parse.
    completion = f"{problem.steps.removesuffix('.')} ({letter})."
    return WorldQuestion(subject, f"{problem.question}\n{lines}", letter, completion)


def _fact(rng: random.Random, kind: Kind, name: str, *, test: bool) -> Problem:
    relation = rng.choice(kind.relations)
    value = kind.facts[name, relation.name]
    question = _word(rng, relation, name, test=test)
    return Problem(question, relation.says.format(s=name, o=value), value, _others(rng, kind, relation, value))


def _two_step(rng: random.Random, world: World, person: str, *, test: bool) -> Problem:
    """A look-up through another: an attribute of the country in which a person was born."""
    home, countries = world.fact("person", person, "birthplace"), world.kinds["country"]
    relation = rng.choice(countries.relations)
    value = countries.facts[home, relation.name]
    question = _word(rng, relation, f"the home country of {person}", test=test)
    steps = f"{person} was born in {home}. {relation.says.format(s=home, o=value)}"
    return Problem(question, steps, value, _others(rng, countries, relation, value))


def _word(rng: random.Random, relation: Relation, subject: str, *, test: bool) -> str:
    """The question for one fact, in a wording of the test set or of training."""
    frames = _TEST_FRAMES if test else _TRAIN_FRAMES
    own = relation.unseen if test else relation.asks
    if rng.random() < 0.4:
        text = rng.choice(own).format(s=subject)
    else:
        text = rng.choice(frames).format(np=relation.noun.format(s=subject))
    return text if test else rng.choice(_OPENERS) + text


def _others(rng: random.Random, kind: Kind, relation: Relation, right: str) -> tuple[str, ...]:
    return tuple(rng.sample([value for value in kind.values(relation.name) if value != right], 3))


def training_item(rng: random.Random, world: World) -> WorldQuestion:
    """One training question: subjects by the practice they take, entities by fame, levels evenly."""
    return draw(rng, world, rng.choices(SUBJECTS, _PRACTICE)[0], test=False, by_fame=True)


def test_items(world: World, per_subject: int, seed: str) -> list[WorldQuestion]:
    """The test set: ``per_subject`` different questions for each subject, entities and levels evenly. Of a subject that
    has not so many, all that ``GIVE_UP`` draws after the last new one have found; more of them begin with the same.
    """
    items: dict[str, WorldQuestion] = {}
    for subject in SUBJECTS:
        rng = random.Random(f"{seed}/{subject}")
        size = len(items) + per_subject
        latest = 0
        for attempt, level in enumerate(itertools.cycle(skills.LEVELS)):
            if len(items) == size or attempt - latest > GIVE_UP:
                break
            item = draw(rng, world, subject, level=level, test=True)
            if (question := question_of(item)) not in items:
                items[question], latest = item, attempt
    return list(items.values())
