"""Problems to solve instead of facts to remember: arithmetic, ordering, sequences, code, reading and logic.

Each maker draws a problem of a level (1 easy ... 4 hard) with its solution. A hash of the content assigns it to the
test set or to training.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from ianvs_specdec.benchmarks.world.facts import COLOURS, World

LEVELS = (1, 2, 3, 4)
THINGS = ["apples", "lamps", "ropes", "coins", "drums", "kites", "cups", "boots", "maps", "seeds"]
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
_TEST_SHARE = 8


@dataclass(frozen=True)
class Problem:
    """A question; ``steps``: its solution, which ends in the answer; ``wrong``: three or more plausible other
    answers."""

    question: str
    steps: str
    answer: str
    wrong: tuple[str, ...]


def is_test(content: str) -> bool:
    """Whether a problem belongs to the test set: an eighth of all, by a hash of the content."""
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big") % _TEST_SHARE == 0


def _near(rng: random.Random, value: int, offsets: tuple[int, ...] = (1, -1, 2, -2, 10, -10, 9, 11)) -> tuple[str, ...]:
    return tuple(str(value + offset) for offset in rng.sample(offsets, len(offsets)) if value + offset >= 0)


def column_addition(a: int, b: int) -> str:
    """Column addition: ``"7+5=12, 4+8+1=13, 3+2+1=6"``."""
    steps: list[str] = []
    carry = 0
    while a or b or not steps:
        total = a % 10 + b % 10 + carry
        steps.append(f"{a % 10}+{b % 10}" + ("+1" if carry else "") + f"={total}")
        a, b, carry = a // 10, b // 10, total // 10
    return ", ".join(steps)


def arithmetic(rng: random.Random, level: int, world: World) -> Problem:
    """Addition of numbers of growing length (levels 1, 2, 4) and multiplication by one digit (level 3)."""
    if level == 3:
        a, b = rng.randrange(12, 60), rng.randrange(3, 10)
        tens, ones = a // 10 * 10, a % 10
        steps = f"{tens}*{b}={tens * b}, {ones}*{b}={ones * b}, {tens * b}+{ones * b}={a * b}."
        return Problem(f"What is {a} * {b}?", steps, str(a * b), _near(rng, a * b))
    low, high = {1: (10, 100), 2: (10, 100), 4: (100, 1000)}[level]
    a, b = rng.randrange(low, high), rng.randrange(2, 10) if level == 1 else rng.randrange(low, high)
    steps = f"{column_addition(a, b)}. {a}+{b}={a + b}."
    return Problem(f"What is {a} + {b}?", steps, str(a + b), _near(rng, a + b))


def ordering(rng: random.Random, level: int, world: World) -> Problem:
    """The k-th number of a list once it is sorted; the list grows with the level."""
    numbers = rng.sample(range(10, 100), level + 2)
    ordered = sorted(numbers)
    k = rng.randrange(len(numbers))
    return Problem(
        f"Put the list {', '.join(map(str, numbers))} in order. Which number is {_ORDINALS[k]}?",
        f"In order: {', '.join(map(str, ordered))}. The {_ORDINALS[k]} is {ordered[k]}.",
        str(ordered[k]),
        tuple(str(n) for n in rng.sample(numbers, len(numbers)) if n != ordered[k]) + _near(rng, ordered[k]),
    )


def sequences(rng: random.Random, level: int, world: World) -> Problem:
    """The next number of an arithmetic progression with a growing step; from level 3 on the step itself grows."""
    start, step = rng.randrange(1, 60), rng.randrange(2, 4 + 2 * level)
    grows = rng.randrange(1, 4) if level >= 3 else 0
    steps = [step + i * grows for i in range(4)]
    terms = [start]
    for s in steps:
        terms.append(terms[-1] + s)
    if grows:
        seen = ", ".join(map(str, steps[:3]))
        why = f"The steps are {seen}, so the next step is {steps[3]}. {terms[3]}+{steps[3]}={terms[4]}."
    else:
        why = f"The step is {step}. {terms[3]}+{step}={terms[4]}."
    question = f"Which number comes next: {', '.join(map(str, terms[:4]))}?"
    return Problem(question, why, str(terms[4]), _near(rng, terms[4]))


def code(rng: random.Random, level: int, world: World) -> Problem:
    """What a few lines of Python print: assignments, then a loop, a condition and a slice."""
    a, b, c = rng.randrange(2, 40), rng.randrange(2, 10), rng.randrange(2, 6)
    if level == 1:
        lines, value = f"x = {a}\ny = x + {b}\nprint(y)", a + b
        why = f"y = {a}+{b}={value}."
    elif level == 2:
        a = a % 8 + 2
        lines, value = f"x = {a}\ny = x + {b}\nprint(y * {c})", (a + b) * c
        why = f"y = {a}+{b}={a + b}. {a + b}*{c}={value}."
    elif level == 3:
        values = [a + i * b for i in range(1, c + 1)]
        lines, value = f"x = {a}\nfor i in range({c}):\n    x = x + {b}\nprint(x)", values[-1]
        why = f"x goes {a}, {', '.join(map(str, values))}."
    else:
        numbers = rng.sample(range(2, 20), 5)
        a = a % 12 + 2
        chosen = [n for n in numbers if n > a]
        lines, value = f"n = {numbers}\nprint(sum(i for i in n if i > {a}))", sum(chosen)
        partial = [str(sum(chosen[: i + 1])) for i in range(len(chosen))]
        why = f"Above {a}: {', '.join(map(str, chosen)) or 'none'}. The sum goes {', '.join(partial) or '0'}."
    return Problem(f"What does this code print?\n{lines}", why, str(value), _near(rng, value))


def reading(rng: random.Random, level: int, world: World) -> Problem:
    """Find a number in a passage with more numbers at higher levels; at level 4 find who has a thing."""
    names = rng.sample(world.kinds["person"].names, level + 1)
    things = rng.sample(THINGS, level + 1)
    counts = rng.sample(range(2, 60), level + 1)
    colours = [rng.choice(COLOURS) for _ in names]
    rows = list(zip(names, counts, colours, things, strict=True))
    passage = " ".join(f"{n} has {k} {c} {t}." for n, k, c, t in rows)
    name, count, colour, thing = rng.choice(rows)
    found = f"{name} has {count} {colour} {thing}"
    if level == 4:
        others = tuple(n for n in rng.sample(names, len(names)) if n != name)
        return Problem(f"{passage} Who has the {thing}?", f"{found}: {name}.", name, others)
    wrong = tuple(str(k) for k in counts if k != count) + _near(rng, count)
    return Problem(f"{passage} How many {thing} does {name} have?", f"{found}: {count}.", str(count), wrong)


def logic(rng: random.Random, level: int, world: World) -> Problem:
    """Who is tallest or shortest, given comparisons of neighbours in scrambled order."""
    names = rng.sample(world.kinds["person"].names, 4 if level == 1 else level + 3)
    clues = [f"{a} is taller than {b}." for a, b in itertools.pairwise(names)]
    if level > 1:
        rng.shuffle(clues)
    tallest = rng.random() < 0.5
    answer = names[0] if tallest else names[-1]
    others = tuple(n for n in rng.sample(names, len(names)) if n != answer)
    extreme = "tallest" if tallest else "shortest"
    solution = f"From tall to short: {', '.join(names)}. The {extreme} is {answer}."
    return Problem(f"{' '.join(clues)} Who is the {extreme}?", solution, answer, others)


SKILLS: dict[str, Callable[[random.Random, int, World], Problem]] = {
    maker.__name__: maker for maker in (arithmetic, ordering, sequences, code, reading, logic)
}


def any_level(rng: random.Random, world: World) -> int:
    """A random level: uniform, or harder ones rarer if the world's ``tail`` is steep."""
    if world.tail == 1:
        return rng.choice(LEVELS)
    return rng.choices(LEVELS, [level ** (1 - world.tail) for level in LEVELS])[0]


def draw(rng: random.Random, skill: str, level: int, world: World, *, test: bool) -> Problem:
    """A problem of a skill, from the test or the training share."""
    while True:
        problem = SKILLS[skill](rng, level, world)
        if is_test(problem.question) == test:
            return problem
