"""Tasks with one right number, as prompts to learn from by reward; made from a grammar.

They are the same on every machine, and dedicated to the public domain (CC0 1.0).
"""

from __future__ import annotations

import random
from functools import cache

from recipe_core.base.documents import to_json

SOURCE = "recipe-builder/kitchen-sums"
# Tasks that a bundle has at least.
LEAST = 256

_SEED = 20_260_102
_COOKS = ("Ada", "Ben", "Clara", "Daniel", "Emma", "Felix", "Greta", "Hugo")
_THINGS = ("eggs", "carrots", "lemons", "plates", "loaves", "onions", "cups of rice")
_ASK = "Think step by step, and end with the number."


@cache
def sample_tasks(prompts: int) -> tuple[tuple[str, str], ...]:
    """Questions with their answers: as many whole steps of ``prompts`` as make ``LEAST``."""
    chance = random.Random(_SEED)  # noqa: S311 - text, not secrets
    steps = max(-(-LEAST // prompts), 1)
    return tuple(_sample_task(chance) for _ in range(steps * prompts))


def _sample_task(chance: random.Random) -> tuple[str, str]:
    cook, thing = chance.choice(_COOKS), chance.choice(_THINGS)
    first, more, boxes, used = (chance.randint(2, top) for top in (90, 40, 9, 60))
    total = first + more * boxes
    used = min(used, total - 1)
    question = (
        f"{cook} has {first} {thing} and buys {boxes} boxes with {more} each. "
        f"Then {used} are used. How many {thing} are left? {_ASK}"
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
