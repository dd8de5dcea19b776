"""Recipe Builder: a model, hardware and an objective in; every layout judged, one bundle out.

>>> import recipe_core as rb
>>> plan = rb.plan({
...     "model": "Qwen/Qwen3-32B",
...     "hardware": {"device": "mi300x", "per_node": 8},
...     "workload": {"input_tokens": 1024, "output_tokens": 256, "concurrency": 64},
... })
>>> plan.best.candidate["engine"]
'vllm'
>>> recipe = rb.build(plan.best)
>>> recipe.device.count
8

Importing this package imports nothing else: each name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # importing typing would take longer than all of this
if TYPE_CHECKING:
    from typing import Any

    from recipe_core.base.errors import InputError, NoAnswer, RecipeError
    from recipe_core.doors.public import (
        build,
        check,
        compress,
        estimate,
        fleet,
        plan,
        read,
        simulate,
        size,
        validate,
        write,
    )
    from recipe_core.estimates.results import Estimate
    from recipe_core.plans.plan import Plan
    from recipe_core.plans.splits import Split
    from recipe_core.recipe.schema import Recipe
    from recipe_core.request.schema import PlanRequest as Request

__version__ = "0.1.0"

__all__ = [
    "Estimate",
    "InputError",
    "NoAnswer",
    "Plan",
    "Recipe",
    "RecipeError",
    "Request",
    "Split",
    "build",
    "check",
    "compress",
    "estimate",
    "fleet",
    "plan",
    "read",
    "simulate",
    "size",
    "validate",
    "write",
]

# The module of a name, and what it is called there where that differs; all others are of the public
# door.
_HOMES = {
    "Estimate": "estimates.results",
    "InputError": "base.errors",
    "NoAnswer": "base.errors",
    "Plan": "plans.plan",
    "Recipe": "recipe.schema",
    "RecipeError": "base.errors",
    "Request": "request.schema:PlanRequest",
    "Split": "plans.splits",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, _, name_there = _HOMES.get(name, "doors.public").partition(":")
    value = getattr(import_module(f"{__name__}.{home}"), name_there or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
