"""From a measurement that a bundle wrote to a claim of its recipe."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.recipe.measurements import VALID_DAYS, Claim
from recipe_core.recipe.schema import Recipe


def claim_of(recipe: Recipe, measurement: Mapping[str, Any], valid_days: int = VALID_DAYS) -> Claim:
    """A claim from a ``measurement.json`` that the recipe's own bundle wrote.

    Raises:
        InputError: when it is no measurement, or of another engine, machine or recipe than this.
    """
    try:
        found = measurement["engine"]["version"], measurement["machine"], measurement["recipe"]
        day = datetime.datetime.fromisoformat(measurement["created"]).date()
        metrics = {
            name: float(value)
            for name, value in measurement["metrics"].items()
            if isinstance(value, int | float)
        }
        workload, digest = (
            dict(measurement.get("workload") or recipe.request["workload"]),
            measurement.get("recipe_digest"),
        )
        seen = [device["name"] for device in found[1]["devices"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        hint = "Give the run/measurement.json of a bundle."
        raise InputError(
            f"is no measurement ({type(error).__name__}: {error}).", field="measured", hint=hint
        ) from None
    _check_same(recipe, *found, seen)
    return Claim(
        engine=recipe.engine.name,
        version=recipe.engine.version,
        image_digest=recipe.lock.image.digest if recipe.lock and recipe.lock.image else None,
        device=recipe.device.name,
        count=recipe.device.count,
        candidate=recipe.candidate,
        max_context=recipe.max_context,
        workload=workload,
        date=day,
        expires=day + datetime.timedelta(days=valid_days),
        metrics=metrics,
        bundle_digest=digest,
    )


def _check_same(
    recipe: Recipe, version: Any, machine: Mapping[str, Any], name: Any, seen: list[str]
) -> None:
    """Raise InputError for a measurement of something else."""
    known = {each.casefold() for each in recipe.device.names}
    pairs = [
        (name != recipe.name, f"is of the recipe {name}, not of {recipe.name}."),
        (
            version != recipe.engine.version,
            f"was measured with {recipe.engine.name} {version}; the recipe pins {recipe.engine.version}.",
        ),
        (
            machine.get("runtime") != recipe.device.runtime,
            f"was measured on {machine.get('runtime')}, not on {recipe.device.runtime}.",
        ),
        (
            bool(known) and any(each.casefold() not in known for each in seen),
            f"was measured on {', '.join(seen)}.",
        ),
    ]
    for wrong, message in pairs:
        if wrong:
            raise InputError(
                message, field="measured", hint="Give a measurement of this recipe's own bundle."
            )
