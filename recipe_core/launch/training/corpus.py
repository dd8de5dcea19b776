"""A small text to train on: sentences about kitchens, made from a grammar.

It is the same on every machine. Grammar and text are dedicated to the public domain (CC0 1.0).
"""

from __future__ import annotations

import random
from functools import cache

_SEED = 20_260_101
_STORIES = 700
_COOKS = tuple(
    "Ada Ben Clara Daniel Emma Felix Greta Hugo Ida Jonas Karla Leo Mira Nils Olga Paul".split()  # noqa: SIM905
)
_PLACES = [
    "the small kitchen",
    "the old bakery",
    "the harbour inn",
    "the school canteen",
    "the house on the hill",
    "the night market",
]
_DISHES = {
    "bread": (
        "flour, water, salt and yeast",
        "a hot oven",
        "until the crust is brown",
        "It sounds hollow when it is done.",
    ),
    "soup": (
        "carrots, onions, broth and thyme",
        "a deep pot",
        "until the carrots are soft",
        "It tastes better on the second day.",
    ),
    "pancakes": (
        "flour, milk, eggs and butter",
        "a flat pan",
        "until both sides are golden",
        "The first one is never round.",
    ),
    "rice": (
        "rice, water and a little salt",
        "a heavy pot with a lid",
        "until the water is gone",
        "It rests before it is served.",
    ),
    "stew": (
        "beans, tomatoes, garlic and oil",
        "an iron pot",
        "until the sauce is thick",
        "It needs time more than it needs fire.",
    ),
    "cake": (
        "sugar, eggs, flour and lemon",
        "a round tin",
        "until a needle comes out clean",
        "It cools before it is cut.",
    ),
    "salad": (
        "leaves, cucumber, oil and vinegar",
        "a wide bowl",
        "until every leaf shines",
        "It is dressed at the last moment.",
    ),
    "porridge": (
        "oats, milk and honey",
        "a small pot",
        "until it is thick and smooth",
        "It is eaten while it is warm.",
    ),
}
_TIMES = [
    "five minutes",
    "ten minutes",
    "a quarter of an hour",
    "half an hour",
    "one hour",
    "two hours",
]
_GUESTS = [
    "a sailor",
    "a teacher",
    "two children",
    "a tired traveller",
    "the neighbours",
    "a painter",
    "an old friend",
]
_WEATHER = [
    "It is raining outside.",
    "The sun is low.",
    "The street is quiet.",
    "Snow lies on the roofs.",
    "The wind smells of the sea.",
]
_ENDS = (
    "A good recipe says what you need, what you do, and what you get.",
    "Nothing is wasted, and the pot is empty at the end.",
    "Everyone asks for more.",
    "Then the plates are washed and the light goes out.",
    "The next day it is cooked again.",
)


@cache
def corpus() -> str:
    """Some 300 kB of paragraphs, an empty line between them."""
    chance = random.Random(_SEED)  # noqa: S311 - text, not secrets
    return "\n\n".join(_story(chance) for _ in range(_STORIES)) + "\n"


def _story(chance: random.Random) -> str:
    cook, other = chance.sample(_COOKS, 2)
    dish = chance.choice(sorted(_DISHES))
    needs, tool, until, saying = _DISHES[dish]
    time, guest, place = chance.choice(_TIMES), chance.choice(_GUESTS), chance.choice(_PLACES)
    story = [
        f"{cook} makes {dish} in {place}.",
        chance.choice(_WEATHER),
        f"To make {dish} you need {needs}.",
        f"{cook} takes {tool} and cooks the {dish} for {time}, {until}.",
        saying,
        f"A guest asks: What is in the {dish}? {cook} says: In the {dish} there are {needs}.",
        f"{other} brings the {dish} to {guest}.",
        chance.choice(_ENDS),
    ]
    # The first sentence names cook and dish; of the others some are left out, so that texts vary.
    sentences = [story[0], *(sentence for sentence in story[1:] if chance.random() < 0.85)]
    return " ".join(sentences)
