"""From a measurement that a bundle wrote to a claim of its recipe."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from recipe_core.base.errors import InputError
from recipe_core.base.provenance import VALID_DAYS
from recipe_core.recipe.figures import Claim
from recipe_core.recipe.schema import Recipe


def claim_of(
    recipe: Recipe,
    measurement: Mapping[str, Any],
    valid_days: int = VALID_DAYS,
) -> Claim:
    """A claim from a ``measurement.json`` that the recipe's own bundle wrote.

    Raises:
        InputError: when it is not a measurement, or of another engine, machine or recipe than this.
    """
    try:
        version, machine = measurement["engine"]["version"], measurement["machine"]
        name = measurement["recipe"]
        date = datetime.datetime.fromisoformat(measurement["created"]).date()
        figures = measurement["metrics"].items()
        metrics = {key: float(value) for key, value in figures if isinstance(value, int | float)}
        workload = dict(measurement.get("workload") or recipe.request["workload"])
        digest = measurement.get("recipe_digest")
        devices = [device["name"] for device in machine["devices"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"is not a measurement ({type(error).__name__}: {error})."
        hint = "Give the run/measurement.json of a bundle."
        raise InputError(message, field="measured", hint=hint) from None
    _check_same(recipe, version, machine, name, devices)
    return Claim(
        engine=recipe.engine.name,
        version=recipe.engine.version,
        image_digest=recipe.lock.image.digest if recipe.lock and recipe.lock.image else None,
        device=recipe.device.name,
        count=recipe.device.count,
        candidate=recipe.candidate,
        max_context=recipe.max_context,
        workload=workload,
        date=date,
        expires=date + datetime.timedelta(days=valid_days),
        metrics=metrics,
        bundle_digest=digest,
    )


def _check_same(
    recipe: Recipe,
    version: Any,
    machine: Mapping[str, Any],
    name: Any,
    devices: list[str],
) -> None:
    """Raise InputError for a measurement of something else."""
    engine, runtime = recipe.engine, recipe.device.runtime
    device_names = {alias.casefold() for alias in recipe.device.names}
    foreign = [
        device for device in devices if device_names and device.casefold() not in device_names
    ]
    problems = [
        (name != recipe.name, f"is of the recipe {name}, not of {recipe.name}."),
        (
            version != engine.version,
            f"was measured with {engine.name} {version}; the recipe pins {engine.version}.",
        ),
        (
            machine.get("runtime") != runtime,
            f"was measured on {machine.get('runtime')}, not on {runtime}.",
        ),
        (bool(foreign), f"was measured on {', '.join(devices)}."),
    ]
    for wrong, message in problems:
        if wrong:
            hint = "Give a measurement of this recipe's own bundle."
            raise InputError(message, field="measured", hint=hint)
