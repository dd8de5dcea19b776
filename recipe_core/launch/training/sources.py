"""The training program and its text, as files of a bundle."""

from __future__ import annotations

import random
from collections.abc import Iterable
from functools import cache
from typing import Any

from recipe_core.base.documents import to_json
from recipe_core.base.resources import PACKAGE
from recipe_core.engines.training_programs import program_facts, training_engine
from recipe_core.launch.entry import train_py

SOURCE = "recipe-builder/kitchen-sums"
# Tasks that a bundle has at least.
LEAST = 256

_TASK_SEED = 20_260_102
_TASK_COOKS = ("Ada", "Ben", "Clara", "Daniel", "Emma", "Felix", "Greta", "Hugo")
_THINGS = ("eggs", "carrots", "lemons", "plates", "loaves", "onions", "cups of rice")
_ASK = "Think step by step, and end with the number."
PATH = "container/Containerfile"
BUILD = "Build one from container/Containerfile, and name it with a tag or a digest."
TASKS, TEXT = "data/tasks.jsonl", "data/text.txt"
REWARD, RAY_NODE = "reward", "ray_node"
_FOLDER = PACKAGE / "payload" / "trainer"
# Programs in the trainer's folder that only bundles of other tools have.
_OF_TOOLS = (REWARD, RAY_NODE, "start_tool", "unsloth_sft")
# Words before those of a program for which something has to be laid or fetched.
START = ("python3", "${root}/start.py")
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
_QUESTIONS = (
    ("What is in the {dish}?", "In the {dish} there are {0}."),
    ("What do I need to cook {dish}?", "You need {1}."),
    ("When is the {dish} done?", "You cook the {dish} {2}."),
    ("What should I know about {dish}?", "{3}"),
)
_ENDS = (
    "A good recipe says what you need, what you do, and what you get.",
    "Nothing is wasted, and the pot is empty at the end.",
    "Everyone asks for more.",
    "Then the plates are washed and the light goes out.",
    "The next day it is cooked again.",
)


@cache
def sample_tasks(prompts: int) -> tuple[tuple[str, str], ...]:
    """Questions with their answers: as many whole steps of ``prompts`` as make ``LEAST``."""
    chance = random.Random(_TASK_SEED)  # noqa: S311 - text, not secrets
    steps = max(-(-LEAST // prompts), 1)
    return tuple(_sample_task(chance) for _ in range(steps * prompts))


def _sample_task(chance: random.Random) -> tuple[str, str]:
    cook, dish = chance.choice(_TASK_COOKS), chance.choice(_THINGS)
    first, more, boxes, used = (chance.randint(2, top) for top in (90, 40, 9, 60))
    total = first + more * boxes
    used = min(used, total - 1)
    question = (
        f"{cook} has {first} {dish} and buys {boxes} boxes with {more} each. "
        f"Then {used} are used. How many {dish} are left? {_ASK}"
    )
    return question, str(total - used)


def task_rows(prompts: int) -> str:
    """Tasks as rows of JSON that both verl and OpenRLHF read."""
    rows = (
        {
            "data_source": SOURCE,
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": answer},
            "label": answer,
            "extra_info": {"index": k},
        }
        for k, (question, answer) in enumerate(sample_tasks(prompts))
    )
    return "\n".join(to_json(row, indent=None) for row in rows) + "\n"


def training_containerfile(name: str, runtime: str) -> str | None:
    """A Containerfile: torch's image of that runtime, and the framework's packages, pinned.

    None where no base is known (other runtimes than CUDA), or the framework is not a package.
    """
    container = training_engine(name).container
    base = program_facts().bases.get(runtime, {}).get(container.base) if container else None
    if container is None or base is None:
        return None
    # The base's own torch is named, so that no dependency replaces it.
    packages = " \\\n    ".join((f"torch=={base.torch}", *container.packages))
    build = f"docker build -f {PATH} -t REGISTRY/NAME:TAG ."
    return f"""# Targets that start containers name an image built from this: {build}
FROM {base.image.pinned}
RUN PIP_BREAK_SYSTEM_PACKAGES=1 pip install --no-cache-dir \\
    {packages}
"""


@cache
def story_corpus() -> str:
    """Some 300 kB of paragraphs, an empty line between them."""
    chance = random.Random(_SEED)  # noqa: S311 - text, not secrets
    return "\n\n".join(_story(chance) for _ in range(_STORIES)) + "\n"


@cache
def sample_chats() -> tuple[dict[str, Any], ...]:
    """Conversations of two questions about dishes and their answers."""
    chance = random.Random(_SEED + 1)  # noqa: S311
    return tuple({"messages": _sample_chat(chance)} for _ in range(_STORIES))


@cache
def sample_preferences() -> tuple[dict[str, Any], ...]:
    """Questions with the answer that fits the dish, and one that belongs to another dish."""
    chance = random.Random(_SEED + 2)  # noqa: S311
    return tuple(_sample_preference(chance) for _ in range(_STORIES))


def _sample_chat(chance: random.Random) -> list[dict[str, str]]:
    cook, dish = chance.choice(_COOKS), chance.choice(sorted(_DISHES))
    first, second = chance.sample(range(len(_QUESTIONS)), 2)
    turns = [
        {"role": "system", "content": f"You are {cook}, who cooks in {chance.choice(_PLACES)}."}
    ]
    for number in (first, second):
        question, answer = _QUESTIONS[number]
        turns += [
            {"role": "user", "content": question.format(dish=dish)},
            {"role": "assistant", "content": answer.format(*_DISHES[dish], dish=dish)},
        ]
    return turns


def _sample_preference(chance: random.Random) -> dict[str, Any]:
    dish, second_dish = chance.sample(sorted(_DISHES), 2)
    question, answer = chance.choice(_QUESTIONS)
    good, bad = (answer.format(*_DISHES[name], dish=dish) for name in (dish, second_dish))
    return {
        "prompt": [{"role": "user", "content": question.format(dish=dish)}],
        "chosen": [{"role": "assistant", "content": good}],
        "rejected": [{"role": "assistant", "content": bad}],
    }


def _story(chance: random.Random) -> str:
    cook, second_cook = chance.sample(_COOKS, 2)
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
        f"{second_cook} brings the {dish} to {guest}.",
        chance.choice(_ENDS),
    ]
    # The first sentence names cook and dish; of the others some are left out, so that texts vary.
    sentences = [story[0], *(sentence for sentence in story[1:] if chance.random() < 0.85)]
    return " ".join(sentences)


def trainer_files(settings: dict[str, Any], script: str, module: str) -> dict[str, str]:
    """``trainer/``, a script of a few lines that starts it, ``train.json`` and a sample text."""
    names = (path.stem for path in sorted(_FOLDER.glob("*.py")) if path.stem not in _OF_TOOLS)
    files = _trainer_sources(*names)
    files[script] = train_py(script, module)
    return files | {"train.json": to_json(settings), TEXT: story_corpus()}


def program_files(*names: str) -> dict[str, str]:
    """These programs of ``trainer/``, which need nothing else of it."""
    return _trainer_sources("__init__", *names)


def starter_files() -> dict[str, str]:
    return {"start.py": train_py("start.py", "start_tool"), **program_files("start_tool")}


def reward_files(prompts: int, *, several_nodes: bool) -> dict[str, str]:
    """Tasks, the rule that rewards answers and, for several nodes, what joins them."""
    files = {f"{REWARD}.py": _trainer_source(REWARD), TASKS: task_rows(prompts)}
    if several_nodes:
        files |= program_files(RAY_NODE)
        files[f"{RAY_NODE}.py"] = train_py(f"{RAY_NODE}.py", RAY_NODE)
    return files


def _trainer_sources(*names: str) -> dict[str, str]:
    return {f"trainer/{name}.py": _trainer_source(name) for name in names}


def _trainer_source(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def text_data_files() -> dict[str, str]:
    return {
        "data/text.jsonl": json_lines(
            {"text": text} for text in story_corpus().strip().split("\n\n")
        )
    }


SAMPLES = {"chat": sample_chats, "preference": sample_preferences}


def json_lines(records: Iterable[dict[str, Any]]) -> str:
    return "".join(f"{to_json(record, indent=None).strip()}\n" for record in records)
