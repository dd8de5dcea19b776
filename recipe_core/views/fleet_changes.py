"""Changes of a fleet that are tried: which are suggested, what they change, and how they are made.

A change that a reader takes is written into the document as its author wrote that: only what
differs is touched.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from recipe_core.base.units import chance_text, usd
from recipe_core.fleets.answer import FleetAnswer
from recipe_core.fleets.request import FleetRequest
from recipe_core.fleets.what_if import FleetChanges
from recipe_core.views.fleets import RENTED

# Pools and models that changes of each kind are suggested for.
MOST_EACH = 2


def suggest_changes(answer: FleetAnswer) -> dict[str, FleetChanges]:
    """Return changes that most fleets are asked about, by what this one has, in a few words."""
    chips: dict[str, dict[str, Any]] = {}
    running = [use for use in answer.pools if max(use.used.values(), default=0.0) > 0]
    # machines of one's own before those that are rented: nobody replaces them
    losses = sorted(running, key=lambda use: (use.term in RENTED, -use.devices))
    for use in losses[:MOST_EACH]:
        chips[f"Lose a node of {use.name}"] = {"lose_nodes": {use.name: 1}}
        if 1 < use.racks < use.nodes:
            chips[f"Lose a rack of {use.name}"] = {"lose_racks": {use.name: 1}}
    dearest_models = sorted(answer.models, key=lambda model: -model.usd_per_hour)
    for model in dearest_models[:MOST_EACH]:
        chips[f"+25 % load of {model.name}"] = {"loads": {model.name: 1.25}}
    priced = [use for use in running if use.usd_per_device_hour > 0]
    for use in sorted(priced, key=lambda use: -use.usd_per_hour)[:MOST_EACH]:
        price = float(f"{use.usd_per_device_hour * 1.2:.6g}")
        chips[f"+20 % price of {use.name}"] = {"prices": {use.name: price}}
    if answer.request.growth or any(model.growth for model in answer.request.models):
        chips["3 months of growth"] = {"months": 3}
    return {label: FleetChanges.parse(changes) for label, changes in chips.items()}


def difference_rows(before: FleetAnswer, after: FleetAnswer) -> list[dict[str, str]]:
    """Return the figures of two answers side by side; what nobody lacks is left out."""
    rows = {
        "Per hour": [usd(answer.usd_per_hour) for answer in (before, after)],
        "All limits hold": [chance_text(answer.probability) for answer in (before, after)],
        "Power": [f"{answer.watts / 1e3:.1f} kW" for answer in (before, after)],
    }
    lacking = [{model.name: model.unmet for model in answer.models} for answer in (before, after)]
    for name in dict.fromkeys([*lacking[0], *lacking[1]]):
        shares = [values.get(name, 0.0) for values in lacking]
        if any(shares):
            rows[f"Not served of {name}"] = [f"{share * 100:.3g} %" for share in shares]
    return [{"title": title, "now": now, "then": then} for title, (now, then) in rows.items()]


def changed_document(values: Mapping[str, Any], changes: FleetChanges) -> dict[str, Any]:
    """Return a fleet's plain values with numbers of its pools and loads changed.

    Raises:
        InputError: for values that are no fleet, and names that it does not have.
    """
    fleet = FleetRequest.parse(values)
    changed = changes.apply(fleet)
    out: dict[str, Any] = copy.deepcopy(dict(values))
    for plain, pool in zip(out["pools"], fleet.pools, strict=True):
        _write_changes(plain, pool, changed.pool(pool.name))
    changed_models = {model.name: model for model in changed.models}
    for plain, model in zip(out["models"], fleet.models, strict=True):
        _write_changes(plain["workload"], model.workload, changed_models[model.name].workload)
    return out


def _write_changes(plain: dict[str, Any], before: BaseModel, after: BaseModel) -> None:
    """Write the fields that differ; one that is no longer stated is taken out."""
    for name in type(after).model_fields:
        value = getattr(after, name)
        if value is None:
            plain.pop(name, None)
        elif value != getattr(before, name):
            plain[name] = value
