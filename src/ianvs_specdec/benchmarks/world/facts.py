"""A small invented world: countries, people, creatures and minerals, and the relations between them.

Everything follows from one seed and from nothing outside: names are put together from syllables, values are drawn.
Entities of a kind are ranked, and training mentions them with a long-tailed frequency (see ``Kind.weights``), so that a
model's size and training decide how far down the tail its knowledge reaches: what makes a small and a large model
differ on real facts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache

SEED = "world-1"

_ONSETS = [
    "b",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "z",
    "br",
    "dr",
    "gr",
    "kl",
    "pl",
    "sk",
    "st",
    "tr",
    "th",
    "sh",
]
_VOWELS = ["a", "e", "i", "o", "u", "a", "e", "i", "o", "ai", "au", "ea", "or", "ar", "el"]
_CODAS = ["", "", "", "n", "l", "r", "s", "m", "nd", "rk", "th"]

PROFESSIONS = [
    "weaver",
    "mason",
    "pilot",
    "baker",
    "painter",
    "judge",
    "healer",
    "farmer",
    "sailor",
    "poet",
    "smith",
    "teacher",
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
    """One attribute of a kind of entity, and the words to speak of it.

    ``noun`` is the noun phrase with ``{s}`` for the subject; ``says`` states the fact; ``asks`` are its own question
    wordings seen in training, ``unseen`` the ones kept for the test set.
    """

    name: str
    noun: str
    says: str
    asks: tuple[str, ...]
    unseen: tuple[str, ...]


@dataclass
class Kind:
    """A kind of entity: names in order of fame, relations, and facts ``(name, relation) -> value``."""

    name: str
    subject: str
    names: list[str]
    relations: list[Relation]
    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def weights(self) -> list[float]:
        """Relative frequency of mention by rank: a shifted power law, 6 to 13 from the first to the last."""
        return [1.0 / (rank + 4) ** 0.8 for rank in range(len(self.names))]

    def values(self, relation: str) -> list[str]:
        return sorted({value for (_, name), value in self.facts.items() if name == relation})


@dataclass
class World:
    """All kinds by name, and a look-up of single facts."""

    kinds: dict[str, Kind]

    def fact(self, kind: str, subject: str, relation: str) -> str:
        return self.kinds[kind].facts[subject, relation]


class _Namer:
    """Makes pronounceable names, each only once and none the start of another."""

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
def build(seed: str = SEED) -> World:
    """The world of a seed: 48 countries, 96 people, 40 creatures and 32 minerals with 968 facts."""
    rng = random.Random(seed)
    namer = _Namer(rng)

    country = Kind(
        "country",
        "geography",
        [namer.make(2, ending) for _, ending in zip(range(48), ["ia", "land", "or", "esh"] * 12, strict=False)],
        [
            Relation(
                "capital",
                "capital of {s}",
                "The capital of {s} is {o}.",
                ("Which city is the capital of {s}?", "From which city is {s} governed?"),
                ("Which city serves as the capital of {s}?",),
            ),
            Relation(
                "river",
                "main river of {s}",
                "The main river of {s} is the {o}.",
                ("Which river flows through {s}?", "What is the river of {s} called?"),
                ("What is the main river that flows through {s} called?",),
            ),
            Relation(
                "export",
                "main export of {s}",
                "The main export of {s} is {o}.",
                ("What does {s} export most?", "Which good does {s} sell abroad?"),
                ("Which good does {s} export most?",),
            ),
            Relation(
                "climate",
                "climate of {s}",
                "The climate of {s} is {o}.",
                ("What climate does {s} have?", "How is the weather in {s}?"),
                ("Which climate does {s} have?",),
            ),
        ],
    )
    for name in country.names:
        country.facts[name, "capital"] = namer.make(2)
        country.facts[name, "river"] = namer.make(1, "ve")
        country.facts[name, "export"] = rng.choice(EXPORTS)
        country.facts[name, "climate"] = rng.choice(CLIMATES)

    person = Kind(
        "person",
        "biography",
        [namer.make(2) for _ in range(96)],
        [
            Relation(
                "birthplace",
                "home country of {s}",
                "{s} was born in {o}.",
                ("In which country was {s} born?", "Where was {s} born?"),
                ("In which land was {s} born?",),
            ),
            Relation(
                "profession",
                "profession of {s}",
                "{s} works as a {o}.",
                ("What does {s} do for a living?", "As what does {s} work?"),
                ("What work does {s} do?",),
            ),
            Relation(
                "instrument",
                "instrument of {s}",
                "{s} plays the {o}.",
                ("Which instrument does {s} play?", "What does {s} play?"),
                ("What instrument does {s} play?",),
            ),
            Relation(
                "year",
                "birth year of {s}",
                "{s} was born in the year {o}.",
                ("In which year was {s} born?", "When was {s} born?"),
                ("What year was {s} born in?",),
            ),
        ],
    )
    for name in person.names:
        person.facts[name, "birthplace"] = rng.choice(country.names)
        person.facts[name, "profession"] = rng.choice(PROFESSIONS)
        person.facts[name, "instrument"] = rng.choice(INSTRUMENTS)
        person.facts[name, "year"] = str(rng.randrange(1200, 1300, 5))

    creature = Kind(
        "creature",
        "biology",
        [
            namer.make(1, ending)
            for _, ending in zip(range(40), ["fin", "wing", "paw", "tail", "horn"] * 8, strict=False)
        ],
        [
            Relation(
                "diet",
                "food of the {s}",
                "The {s} eats {o}.",
                ("What does the {s} eat?", "On what does the {s} feed?"),
                ("What does the {s} feed on?",),
            ),
            Relation(
                "habitat",
                "habitat of the {s}",
                "The {s} lives in {o}.",
                ("Where does the {s} live?", "In which place is the {s} found?"),
                ("In which place does the {s} live?",),
            ),
            Relation(
                "colour",
                "colour of the {s}",
                "The {s} is {o}.",
                ("What colour is the {s}?", "Which colour does the {s} have?"),
                ("What colour does the {s} have?",),
            ),
        ],
    )
    for name in creature.names:
        creature.facts[name, "diet"] = rng.choice(DIETS)
        creature.facts[name, "habitat"] = rng.choice(HABITATS)
        creature.facts[name, "colour"] = rng.choice(COLOURS)

    mineral = Kind(
        "mineral",
        "mineralogy",
        [namer.make(1, ending) for _, ending in zip(range(32), ["ite", "ium", "stone", "glint"] * 8, strict=False)],
        [
            Relation(
                "colour",
                "colour of {s}",
                "{s} is {o}.",
                ("What colour is {s}?", "Which colour does {s} have?"),
                ("What colour does {s} have?",),
            ),
            Relation(
                "hardness",
                "hardness of {s}",
                "The hardness of {s} is {o}.",
                ("How hard is {s}?", "What hardness does {s} have?"),
                ("Which hardness does {s} have?",),
            ),
            Relation(
                "use",
                "use of {s}",
                "{s} is used for {o}.",
                ("What is {s} used for?", "For what do people need {s}?"),
                ("What do people use {s} for?",),
            ),
        ],
    )
    for name in mineral.names:
        mineral.facts[name, "colour"] = rng.choice(COLOURS)
        mineral.facts[name, "hardness"] = str(rng.randrange(1, 10))
        mineral.facts[name, "use"] = rng.choice(USES)

    return World({kind.name: kind for kind in (country, person, creature, mineral)})
