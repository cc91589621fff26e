"""The open-ended set: two-turn dialogues in the eight categories of MT-Bench, with reference answers.

Answers follow from the prompt and the world alone, so that similarity to the reference is a fair score. Entities and
problems are drawn as in ``questions``.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ianvs_specdec.benchmarks.world import skills
from ianvs_specdec.benchmarks.world.facts import COLOURS, World


@dataclass(frozen=True)
class Dialogue:
    """Two questions with the answer to each."""

    category: str
    turns: tuple[str, str]
    answers: tuple[str, str]


Talk = tuple[tuple[str, str], tuple[str, str]]
"""Turns and answers of a dialogue."""


def writing(rng: random.Random, world: World, test: bool) -> Talk:
    land = world.kinds["country"].pick(rng, by_fame=not test)
    fact = partial(world.fact, "country", land)
    name = rng.choice(world.kinds["person"].names)
    weather = fact("climate")
    return (
        (f"Write a postcard from {land} to {name}.", "Now write it again in two short sentences."),
        (
            f"Dear {name},\nI am writing from {land}. The weather here is {weather}. "
            f"Today I walked through {fact('capital')}, the capital, and sat by the river {fact('river')}. "
            f"In the market they sell {fact('export')}. "
            f"I wish you were here.\nYour friend",
            f"Dear {name}, {land} is {weather} and {fact('capital')} is beautiful. I bring you {fact('export')}.",
        ),
    )


def roleplay(rng: random.Random, world: World, test: bool) -> Talk:
    name = world.kinds["person"].pick(rng, by_fame=not test)
    fact = partial(world.fact, "person", name)
    home = fact("birthplace")
    return (
        (f"You are {name}. Introduce yourself.", "What do you do in the evening, and what do you miss?"),
        (
            f"Good day! My name is {name}. I was born in {home} in the year {fact('year')}, "
            f"and I work as a {fact('profession')}.",
            f"In the evening I play the {fact('instrument')}. "
            f"I miss {home} and the river {world.fact('country', home, 'river')}.",
        ),
    )


def reasoning(rng: random.Random, world: World, test: bool) -> Talk:
    level = skills.any_level(rng, world)
    problem = skills.draw(rng, "logic", level, world, test=test)
    ranking = problem.steps.split(". The ")[0]
    second = ranking.split(", ")[1]
    return (
        (problem.question, "And who comes second from the top?"),
        (problem.steps, f"{ranking}. The second is {second}."),
    )


def math(rng: random.Random, world: World, test: bool) -> Talk:
    while True:
        a, b, c = rng.randrange(11, 90), rng.randrange(11, 90), rng.randrange(2, 9)
        name, thing = rng.choice(world.kinds["person"].names), rng.choice(skills.THINGS)
        question = f"{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?"
        if skills.is_test(question) == test:
            break
    total = a + b
    return (
        (question, f"Then {name} finds {c} more. How many are there in all?"),
        (
            f"{skills.column_addition(a, b)}. {a}+{b}={total}. {name} has {total} {thing}.",
            f"{skills.column_addition(total, c)}. {total}+{c}={total + c}. {name} has {total + c} {thing}.",
        ),
    )


_FUNCTIONS: dict[str, tuple[str, str, str, str, str, Callable[[list[int]], int]]] = {
    "the sum": ("total", "total = 0", "total = total + {x}", "total", "sum({xs})", sum),
    "the largest": ("largest", "best = {xs}[0]", "best = max(best, {x})", "best", "max({xs})", max),
    "the smallest": ("smallest", "best = {xs}[0]", "best = min(best, {x})", "best", "min({xs})", min),
    "the number": ("count", "n = 0", "n = n + 1", "n", "len({xs})", len),
}


def coding(rng: random.Random, world: World, test: bool) -> Talk:
    while True:
        thing = rng.choice(skills.THINGS)
        what = rng.choice(list(_FUNCTIONS))
        values = rng.sample(range(1, 20), 3)
        second = f"Now write it in one line. What does it return for {values}?"
        if skills.is_test(f"{thing} {what} {second}") == test:
            break
    name, first, body, result, short, function = _FUNCTIONS[what]
    item = thing[:-1]
    fill = lambda text: text.format(x=item, xs=thing)  # noqa: E731
    head = f"def {name}_{thing}({thing}):"
    return (
        (f"Write a Python function that takes a list of {thing} and returns {what} of them. Use a loop.", second),
        (
            f"```python\n{head}\n    {fill(first)}\n    for {item} in {thing}:\n        {fill(body)}\n"
            f"    return {result}\n```",
            f"```python\n{head}\n    return {fill(short)}\n```\nFor {values} it returns {function(values)}.",
        ),
    )


def extraction(rng: random.Random, world: World, test: bool) -> Talk:
    while True:
        size = rng.randrange(2, 5)
        names = rng.sample(world.kinds["person"].names, size)
        counts = rng.sample(range(2, 60), size)
        rows = list(zip(names, counts, rng.choices(COLOURS, k=size), rng.choices(skills.THINGS, k=size), strict=True))
        passage = " ".join(f"{n} has {k} {c} {t}." for n, k, c, t in rows)
        if skills.is_test(passage) == test:
            break
    limit = rng.choice((10, 20, 30))
    above = [n for n, k, _, _ in rows if k > limit]
    return (
        (f"{passage} List the owners and their numbers as JSON.", f"Who has more than {limit}?"),
        (
            json.dumps({n: k for n, k, _, _ in rows}),
            (f"More than {limit}: {', '.join(above)}." if above else f"Nobody has more than {limit}."),
        ),
    )


def stem(rng: random.Random, world: World, test: bool) -> Talk:
    minerals = world.kinds["mineral"]
    one = minerals.pick(rng, by_fame=not test)
    two = rng.choice([m for m in minerals.names if m != one])
    fact = partial(world.fact, "mineral", one)
    hard, other = int(fact("hardness")), int(world.fact("mineral", two, "hardness"))
    verdict = f"{one} is harder." if hard > other else f"{two} is harder." if other > hard else "They are equally hard."
    return (
        (f"Describe the mineral {one}.", f"Which is harder, {one} or {two}?"),
        (
            f"{one} is a mineral. {one} is {fact('colour')}. The hardness of {one} is {hard}. "
            f"{one} is used for {fact('use')}.",
            f"The hardness of {one} is {hard}. The hardness of {two} is {other}. {verdict}",
        ),
    )


def humanities(rng: random.Random, world: World, test: bool) -> Talk:
    land = world.kinds["country"].pick(rng, by_fame=not test)
    fact = partial(world.fact, "country", land)
    people = world.kinds["person"]
    born = [n for n in people.names if people.facts[n, "birthplace"] == land][:2]
    known = " ".join(f"{n} was born in {land} and works as a {people.facts[n, 'profession']}." for n in born)
    return (
        (f"Tell me about {land}.", "Which famous people were born there?"),
        (
            f"{land} is a country. The capital of {land} is {fact('capital')}. "
            f"The main river of {land} is the {fact('river')}. The main export of {land} is {fact('export')}. "
            f"The climate of {land} is {fact('climate')}.",
            known or f"I know of nobody who was born in {land}.",
        ),
    )


CATEGORIES: dict[str, Callable[[random.Random, World, bool], Talk]] = {
    maker.__name__: maker for maker in (writing, roleplay, reasoning, math, coding, extraction, stem, humanities)
}


def training_dialogue(rng: random.Random, world: World) -> Dialogue:
    """A training dialogue of a random category."""
    category, maker = rng.choice(list(CATEGORIES.items()))
    return Dialogue(category, *maker(rng, world, False))


def test_dialogues(world: World, per_category: int, seed: str) -> list[Dialogue]:
    """The test set: ``per_category`` distinct dialogues for each category."""
    found: dict[tuple[str, str], Dialogue] = {}
    for category, maker in CATEGORIES.items():
        rng = random.Random(f"{seed}/{category}")
        size = len(found) + per_category
        while len(found) < size:
            dialogue = Dialogue(category, *maker(rng, world, True))
            found.setdefault(dialogue.turns, dialogue)
    return list(found.values())
