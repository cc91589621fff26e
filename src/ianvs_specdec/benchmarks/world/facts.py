"""A small invented world: countries, people, creatures and minerals, and the relations between them.

Everything follows from one seed: names are composed of syllables, values are drawn. Entities of a kind are ranked, and
training mentions them with a long-tailed frequency (see ``Kind.weights``), so that a model's knowledge of the tail
depends on its size, as with real facts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path

from ianvs_specdec.benchmarks.files import read_json_lines

SEED = "world-1"
WORDINGS = Path(__file__).with_name("relations.jsonl")
"""The relations of each kind of entity, in order, with their wordings."""

_ONSETS = [
    *("b", "d", "f", "g", "h", "j", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"),
    *("br", "dr", "gr", "kl", "pl", "sk", "st", "tr", "th", "sh"),
]
_VOWELS = ["a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "au", "ea", "or", "ar", "el"]
_CODAS = ["", "", "", "n", "l", "r", "s", "m", "nd", "rk", "th"]

PROFESSIONS = [
    *("weaver", "mason", "pilot", "baker", "painter", "judge"),
    *("healer", "farmer", "sailor", "poet", "smith", "teacher"),
]
INSTRUMENTS = ["flute", "drum", "harp", "violin", "trumpet", "lute"]
CLIMATES = ["dry", "rainy", "cold", "mild", "windy"]
EXPORTS = ["wool", "salt", "tea", "copper", "timber", "honey", "glass", "rice", "paper", "olives"]
DIETS = ["leaves", "fish", "insects", "seeds", "roots", "honey"]
HABITATS = ["caves", "forests", "lakes", "deserts", "meadows", "cliffs", "marshes"]
COLOURS = ["red", "blue", "green", "black", "white", "yellow", "grey", "purple"]
USES = ["lamps", "bridges", "coins", "tools", "paint", "medicine", "mirrors"]


@dataclass(frozen=True)
class Relation:
    """One attribute of a kind of entity: ``noun`` is a noun phrase with ``{s}`` for the subject, ``says`` states the
    fact, ``asks`` are question wordings of the training text, ``unseen`` those of the test set."""

    kind: str
    name: str
    noun: str
    says: str
    asks: list[str]
    unseen: list[str]


@dataclass(frozen=True)
class Kind:
    """A kind of entity: names in order of fame, relations, and facts ``(name, relation) -> value``."""

    subject: str
    names: list[str]
    relations: list[Relation]
    facts: dict[tuple[str, str], str]
    tail: float = 1.0

    @cached_property
    def weights(self) -> list[float]:
        """Relative frequency of mention by rank: a shifted power law; with ``tail`` 1 it falls by a factor of 6 to
        13."""
        return [1.0 / (rank + 4) ** (0.8 * self.tail) for rank in range(len(self.names))]

    def values(self, relation: str) -> list[str]:
        return sorted({value for (_, name), value in self.facts.items() if name == relation})

    def pick(self, rng: random.Random, *, by_fame: bool) -> str:
        """The name of an entity, drawn by fame or evenly."""
        return rng.choices(self.names, self.weights)[0] if by_fame else rng.choice(self.names)


@dataclass(frozen=True)
class World:
    """All kinds by name. ``tail``: how steeply the training frequency falls, of entities by rank and of problems by
    level (``level ** (1 - tail)``)."""

    kinds: dict[str, Kind]
    tail: float = 1.0

    def fact(self, kind: str, subject: str, relation: str) -> str:
        return self.kinds[kind].facts[subject, relation]


class _Namer:
    """Makes distinct pronounceable names, none a prefix of another."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._made: set[str] = set()

    def make(self, syllables: int, ending: str = "") -> str:
        while True:
            parts = [self._rng.choice(_ONSETS) + self._rng.choice(_VOWELS) for _ in range(syllables)]
            name = ("".join(parts) + (ending or self._rng.choice(_CODAS))).capitalize()
            if not any(name.startswith(other) or other.startswith(name) for other in self._made):
                self._made.add(name)
                return name


@cache
def build(seed: str = SEED, tail: float = 1.0) -> World:
    """The world of a seed: 48 countries, 96 people, 40 creatures and 32 minerals with 792 facts, whatever the
    ``tail``."""
    rng = random.Random(seed)
    make = _Namer(rng).make
    relations = [Relation(**row) for _, row in read_json_lines(WORDINGS)]
    kinds: dict[str, Kind] = {}

    def among(values: list[str]) -> Callable[[], str]:
        return partial(rng.choice, values)

    def add(kind: str, subject: str, names: list[str], *values: Callable[[], str]) -> None:
        """``values``: draw the value of each relation, in order."""
        own = [relation for relation in relations if relation.kind == kind]
        drawn = {(name, relation.name): draw() for name in names for relation, draw in zip(own, values, strict=True)}
        kinds[kind] = Kind(subject, names, own, drawn, tail)

    # The order of these draws is part of the world.
    countries = [make(2, ending) for ending in ["ia", "land", "or", "esh"] * 12]
    city, river = partial(make, 2), partial(make, 1, "ve")
    add("country", "geography", countries, city, river, among(EXPORTS), among(CLIMATES))
    people = [make(2) for _ in range(96)]
    year = among([str(number) for number in range(1200, 1300, 5)])
    add("person", "biography", people, among(countries), among(PROFESSIONS), among(INSTRUMENTS), year)
    creatures = [make(1, ending) for ending in ["fin", "wing", "paw", "tail", "horn"] * 8]
    add("creature", "biology", creatures, among(DIETS), among(HABITATS), among(COLOURS))
    minerals = [make(1, ending) for ending in ["ite", "ium", "stone", "glint"] * 8]
    hardness = among([str(number) for number in range(1, 10)])
    add("mineral", "mineralogy", minerals, among(COLOURS), hardness, among(USES))
    return World(kinds, tail)
