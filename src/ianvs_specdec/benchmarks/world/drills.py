"""Drills that a model trains on before and beside the questions: finding things again in what it has just read.

Copying from the context is what every other skill here is made of, and a model that meets it only inside hard questions
learns it late. A drill asks for nothing else, and for much of it.
"""

from __future__ import annotations

import random

from ianvs_specdec.benchmarks.extraction import FOUR_LETTERS
from ianvs_specdec.benchmarks.world import skills
from ianvs_specdec.benchmarks.world.facts import World


def _words(rng: random.Random, world: World, count: int) -> list[str]:
    """Different names, numbers or values of one kind, for the options of a question."""
    kind = rng.choice(list(world.kinds.values()))
    numbers = [str(n) for n in rng.sample(range(rng.choice((30, 100, 200, 1000))), count)]
    values = [v for relation in kind.relations if len(v := kind.values(relation.name)) >= count]
    return rng.sample(rng.choice([kind.names, numbers, *values]), count)


def repeat(rng: random.Random, world: World) -> tuple[str, str]:
    """Say a list of words again."""
    words = [word for _ in range(rng.randrange(1, 4)) for word in _words(rng, world, 4)]
    rng.shuffle(words)
    text = " ".join(words)
    return f"Repeat: {text}", text


def options(rng: random.Random, world: World) -> tuple[str, str]:
    """Say which letter marks each of four options, in another order."""
    words = _words(rng, world, 4)
    lines = "\n".join(f"{letter}. {word}" for letter, word in zip(FOUR_LETTERS, words, strict=True))
    order = rng.sample(range(4), 4)
    return f"Which letters?\n{lines}", ", ".join(f"{words[i]} ({FOUR_LETTERS[i]})" for i in order) + "."


def counts(rng: random.Random, world: World) -> tuple[str, str]:
    """Say who has how many of what, in another order."""
    names = rng.sample(world.kinds["person"].names, 4)
    rows = [f"{n} has {rng.randrange(2, 60)} {rng.choice(skills.THINGS)}" for n in names]
    return f"{'. '.join(rows)}. Say it in another order.", ". ".join(rng.sample(rows, 4)) + "."


def drill(rng: random.Random, world: World) -> tuple[str, str]:
    """One drill: what is asked and the answer."""
    return rng.choice((repeat, counts, *[options] * 4))(rng, world)
